#include "pollen/worker/mailbox.hpp"

#include <doctest/doctest.h>
#include <poll.h>

#include <memory>
#include <thread>
#include <vector>

using namespace pollen::worker;

namespace {

bool readable(int fd, int timeout_ms) {
  pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, timeout_ms) == 1;
}

}  // namespace

TEST_SUITE("worker.mailbox") {
  TEST_CASE("a ring holds what its capacity says, rounded up, and refuses the next item untouched") {
    SpscRing<std::unique_ptr<int>> ring(5);
    CHECK(ring.capacity() == 8);
    for (int i = 0; i < 8; ++i) CHECK(ring.push(std::make_unique<int>(i)));
    auto ninth = std::make_unique<int>(9);
    CHECK_FALSE(ring.push(std::move(ninth)));
    REQUIRE(ninth != nullptr);
    std::unique_ptr<int> out;
    for (int i = 0; i < 8; ++i) {
      REQUIRE(ring.pop(out));
      CHECK(*out == i);
    }
    CHECK_FALSE(ring.pop(out));
    CHECK(ring.push(std::move(ninth)));
    CHECK(ring.pop(out));
    CHECK(*out == 9);
  }

  TEST_CASE("two threads: every item arrives, once and in order") {
    SpscRing<std::uint64_t> ring(16);
    constexpr std::uint64_t count = 200'000;
    std::thread producer([&] {
      for (std::uint64_t i = 0; i < count;) {
        std::uint64_t item = i;
        if (ring.push(std::move(item)))
          ++i;
        else
          std::this_thread::yield();
      }
    });
    std::uint64_t expected = 0;
    bool in_order = true;
    for (std::uint64_t item = 0; expected < count;) {
      if (ring.pop(item))
        in_order = in_order && item == expected++;
      else
        std::this_thread::yield();
    }
    producer.join();
    CHECK(in_order);
    CHECK(ring.empty());
  }

  TEST_CASE("messages run in the order they were posted, and no more at once than asked for") {
    Mailbox mailbox;
    std::vector<int> ran;
    for (int i = 0; i < 5; ++i) CHECK(mailbox.post([&ran, i] { ran.push_back(i); }));
    CHECK(ran.empty());
    CHECK(mailbox.run(3) == 3);
    CHECK(ran == std::vector{0, 1, 2});
    CHECK(mailbox.run(3) == 2);
    CHECK(ran.size() == 5);
    CHECK(mailbox.empty());
  }

  TEST_CASE("a full mailbox says so, and takes messages again when some have run") {
    Mailbox mailbox(2);
    int ran = 0;
    CHECK(mailbox.post([&] { ++ran; }));
    CHECK(mailbox.post([&] { ++ran; }));
    CHECK_FALSE(mailbox.post([&] { ran += 100; }));
    CHECK(mailbox.run(1) == 1);
    CHECK(mailbox.post([&] { ++ran; }));
    CHECK(mailbox.run(10) == 2);
    CHECK(ran == 3);
  }

  TEST_CASE("several posters at once lose nothing, and each poster's order is kept") {
    Mailbox mailbox(8);
    constexpr int posters = 3;
    constexpr int each = 5'000;
    std::vector<int> next(posters, 0);
    bool in_order = true;
    std::vector<std::thread> threads;
    for (int poster = 0; poster < posters; ++poster)
      threads.emplace_back([&, poster] {
        for (int i = 0; i < each;) {
          if (mailbox.post(
                  [&, poster, i] { in_order = in_order && next[static_cast<std::size_t>(poster)]++ == i; }))
            ++i;
          else
            std::this_thread::yield();
        }
      });
    for (int ran = 0; ran < posters * each;) {
      const unsigned count = mailbox.run(16);
      ran += static_cast<int>(count);
      if (count == 0) std::this_thread::yield();
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(in_order);
    CHECK(next == std::vector<int>(posters, each));
  }

  TEST_CASE("an owner does not sleep on a message, nor through a wake that came before") {
    Mailbox mailbox;
    CHECK(mailbox.post([] {}));
    CHECK_FALSE(mailbox.sleep_begin());
    mailbox.run(1);
    CHECK(mailbox.sleep_begin());
    mailbox.sleep_end();
    mailbox.wake();
    CHECK_FALSE(mailbox.sleep_begin());
    CHECK(mailbox.sleep_begin());
    CHECK_FALSE(readable(mailbox.fd(), 0));
    mailbox.wake();
    CHECK(readable(mailbox.fd(), 0));
    mailbox.sleep_end();
    CHECK_FALSE(readable(mailbox.fd(), 0));
  }

  TEST_CASE("a sleeping owner is woken by every post: none is missed, however the two meet") {
    Mailbox mailbox(4);
    constexpr int count = 5'000;
    std::thread poster([&] {
      for (int i = 0; i < count;) {
        if (mailbox.post([] {}))
          ++i;
        else
          std::this_thread::yield();
      }
    });
    bool missed = false;
    for (int ran = 0; ran < count && !missed;) {
      if (mailbox.sleep_begin()) {
        missed = !readable(mailbox.fd(), 20'000);
        mailbox.sleep_end();
      }
      ran += static_cast<int>(mailbox.run(16));
    }
    poster.join();
    CHECK_FALSE(missed);
  }

  TEST_CASE("messages that never ran are discarded with the mailbox") {
    const auto token = std::make_shared<int>(0);
    {
      Mailbox mailbox;
      CHECK(mailbox.post([token] {}));
      CHECK(token.use_count() == 2);
    }
    CHECK(token.use_count() == 1);
  }
}
