// The server's side of the hello, for a port that strangers reach too: hands out connections that
// have completed it. One that connects and says nothing waits aside until its time is up, and keeps
// nobody else waiting; garbage, a slow peer or a port scan costs that one socket. One that has begun its
// hello is heard to the end, so a slow speaker holds others up, for hello_limit at most.
//
// Thread rules: one thread at a time. Errors: pollen::Error.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "pollen/net/deadline.hpp"
#include "pollen/net/hello.hpp"
#include "pollen/net/socket.hpp"
#include "pollen/net/tcp_listener.hpp"

namespace pollen::net {

struct Greeted {
  Socket socket;
  Agreement agreement;
};

class Greeter {
 public:
  // Told of each connection that failed, with the reason. What it throws comes out of next(): a
  // program that serves one peer ends so when that one can't agree (ECONNABORTED, EPROTONOSUPPORT).
  using OnReject = std::function<void(const Error&)>;

  // An empty on_reject hears nothing. The listener stays the caller's and must outlive this. hello_limit:
  // from the connection until its hello is complete.
  Greeter(TcpListener& listener, Hello mine, std::chrono::nanoseconds hello_limit, OnReject on_reject);

  // Error(ETIMEDOUT) if nobody came. Connections that have not spoken yet stay for the next call.
  Greeted next(const Deadline& deadline);

 private:
  struct Waiting {
    Socket socket;
    Deadline limit;
  };

  Wake wait(const Deadline& deadline) const;
  void admit(const Deadline& deadline);
  std::optional<Greeted> hear(const Deadline& deadline);

  TcpListener& listener_;
  Hello mine_;
  std::chrono::nanoseconds hello_limit_;
  OnReject on_reject_;
  std::vector<Waiting> waiting_;  // the one that came first is in front
};

}  // namespace pollen::net
