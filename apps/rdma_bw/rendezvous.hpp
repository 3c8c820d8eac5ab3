// Where the workers of a side meet before a round, so that one exchange with the peer does for all of
// them, and all begin together.
//
// Thread rules: the workers call exchange() and then ready(), each once; the last one to arrive speaks
// with the peer while the others wait. Errors: what that one throws, all of them throw; ECANCELED when
// the worker is to stop.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

#include "pollen/net/handshake.hpp"
#include "pollen/worker/worker.hpp"

namespace pollen::bw {

class Rendezvous {
 public:
  // limit: of each of the two steps. The socket is the workers' until all have passed ready().
  Rendezvous(net::Socket& socket, unsigned workers, std::chrono::nanoseconds limit, int stop_fd)
      : socket_(socket), workers_(workers), limit_(limit), stop_fd_(stop_fd), mine_(workers) {}

  // Gives the peer this worker's endpoints and returns those of the worker opposite, as many.
  std::vector<net::QpEndpoint> exchange(const worker::Worker& worker, std::vector<net::QpEndpoint> mine);

  // Returns when everyone on both sides can receive: the moment, by Worker::clock_ns(), from which all
  // workers count.
  std::uint64_t ready(const worker::Worker& worker);

 private:
  void meet(const worker::Worker& worker, const std::function<void()>& last);
  net::Deadline deadline() const { return net::Deadline::after(limit_, stop_fd_); }

  net::Socket& socket_;
  const unsigned workers_;
  const std::chrono::nanoseconds limit_;
  const int stop_fd_;

  std::mutex mutex_;  // of what follows
  std::condition_variable all_here_;
  unsigned arrived_ = 0;
  unsigned meeting_ = 0;
  std::exception_ptr failure_;
  std::vector<std::vector<net::QpEndpoint>> mine_;
  std::vector<net::QpEndpoint> theirs_;
  std::uint64_t begin_ns_ = 0;
};

}  // namespace pollen::bw
