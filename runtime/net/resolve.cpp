// Name look-up with a time limit. getaddrinfo(3) has none and can't be cancelled, so a name is
// looked up by a thread of its own, which is left behind if it takes too long.
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <thread>

#include "pollen/base/error.hpp"
#include "pollen/net/address.hpp"
#include "pollen/net/fd.hpp"

namespace pollen::net {

namespace {

struct Answer {
  int status = 0;  // getaddrinfo's
  int errnum = 0;
  std::vector<SocketAddress> addresses;
};

Answer look_up(const Address& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  Answer answer;
  answer.status = ::getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(),
                                std::to_string(address.port).c_str(), &hints, &found);
  answer.errnum = errno;
  if (answer.status != 0) return answer;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (at->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress& next = answer.addresses.emplace_back();
    std::memcpy(&next.storage, at->ai_addr, at->ai_addrlen);
    next.bytes = at->ai_addrlen;
  }
  return answer;
}

// A thread starts with its maker's mask; signals are for other threads than this one.
struct SignalsBlocked {
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  sigset_t before{};
};

struct LookUp {
  Fd done;
  Answer answer;
};

Answer look_up(const Address& address, const Deadline& deadline) {
  auto shared = std::make_shared<LookUp>();
  shared->done = Fd(::eventfd(0, EFD_CLOEXEC));
  if (!shared->done) throw Error(errno, {.attempted = "make an eventfd"});

  {
    const SignalsBlocked in_the_new_thread;
    std::thread([shared, address] {
      shared->answer = look_up(address, AI_ADDRCONFIG);
      eventfd_write(shared->done.get(), 1);
    }).detach();
  }

  switch (wait_for(shared->done.get(), POLLIN, deadline)) {
    case Wake::ready:
      break;
    case Wake::stopped:
      throw Error(ECANCELED, {.attempted = fmt::format("look up {}", address.host)});
    case Wake::timed_out:
      throw Error(ETIMEDOUT, {.attempted = fmt::format("look up {}", address.host),
                              .why = "no name server answered in time",
                              .remedy = "Give the host's number, or see /etc/resolv.conf"});
  }
  eventfd_t ignored = 0;
  eventfd_read(shared->done.get(), &ignored);  // also orders the answer before what follows
  return std::move(shared->answer);
}

}  // namespace

std::vector<SocketAddress> resolve(const Address& address, const Deadline& deadline) {
  Answer answer = look_up(address, address.host.empty() ? AI_PASSIVE : AI_NUMERICHOST);
  if (answer.status == EAI_NONAME && !address.host.empty()) answer = look_up(address, deadline);
  if (answer.status == 0 && !answer.addresses.empty()) return std::move(answer.addresses);
  throw Error(answer.status == EAI_SYSTEM && answer.errnum != 0 ? answer.errnum : EADDRNOTAVAIL,
              {.attempted = fmt::format("look up {}", address.host),
               .why = answer.status == EAI_SYSTEM ? "" : ::gai_strerror(answer.status),
               .remedy = "Check the name, or give the host's number"});
}

}  // namespace pollen::net
