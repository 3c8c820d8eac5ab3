#include "pollen/worker/fd_watch.hpp"

#include <doctest/doctest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "small_worker.hpp"

using namespace pollen::worker;

namespace {

// An eventfd that is readable from the start.
struct Ready {
  int fd = ::eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
  ~Ready() { ::close(fd); }
};

}  // namespace

TEST_SUITE("worker.fd_watch") {
  TEST_CASE("only descriptors that are ready call back, until they are removed") {
    FdWatch watch;
    const Ready ready;
    const int quiet = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int calls = 0;
    std::uint32_t got = 0;
    watch.add(ready.fd, EPOLLIN, [&](std::uint32_t events) {
      ++calls;
      got = events;
    });
    watch.add(quiet, EPOLLIN, [&](std::uint32_t) { calls += 100; });
    CHECK(watch.poll() == 1);
    CHECK(watch.poll() == 1);
    CHECK(calls == 2);
    CHECK(got == EPOLLIN);
    watch.remove(ready.fd);
    watch.remove(ready.fd);
    CHECK(watch.poll() == 0);
    CHECK_FALSE(watch.empty());
    watch.remove(quiet);
    CHECK(watch.empty());
    ::close(quiet);
  }

  TEST_CASE("other events can be asked for later") {
    FdWatch watch;
    const Ready ready;
    std::uint32_t got = 0;
    watch.add(ready.fd, EPOLLIN, [&](std::uint32_t events) { got = events; });
    watch.change(ready.fd, EPOLLOUT);
    CHECK(watch.poll() == 1);
    CHECK(got == EPOLLOUT);
  }

  TEST_CASE("a callback may remove itself and others; those are called no more") {
    FdWatch watch;
    const Ready one;
    const Ready two;
    int calls = 0;
    const auto callback = [&](std::uint32_t) {
      ++calls;
      watch.remove(one.fd);
      watch.remove(two.fd);
    };
    watch.add(one.fd, EPOLLIN, callback);
    watch.add(two.fd, EPOLLIN, callback);
    CHECK(watch.poll() == 1);
    CHECK(calls == 1);
    CHECK(watch.empty());
  }

  TEST_CASE("a descriptor that can't be watched is an error that names it") {
    FdWatch watch;
    CHECK(
        has(error_of([&] { watch.add(9999, EPOLLIN, [](std::uint32_t) {}); }), "watch file descriptor 9999"));
    const Ready ready;
    watch.add(ready.fd, EPOLLIN, [](std::uint32_t) {});
    CHECK(has(error_of([&] { watch.add(ready.fd, EPOLLIN, [](std::uint32_t) {}); }), "File exists"));
    CHECK(has(error_of([&] { watch.change(9999, EPOLLIN); }), "9999"));
    CHECK(watch.poll() == 1);
  }
}
