// Requests that the peer refuses: with which status on which side, and what is left alone.
#include <fmt/format.h>

#include "errors.hpp"
#include "pollen/base/error.hpp"

using namespace rig;

namespace {

// The peer's refusal, in full: status, states, event, and nothing touched on either side.
void check_remote_refusal(Pair& pair, const Operation& operation, queue::Remote to,
                          Status expected = Status::remote_access_error) {
  pair.b.qp().post_receive(pair.b.sge(900'000, 64));
  pair.b.qp().publish_receives();
  pair.a.fill(0, 8, 5);
  std::vector<std::byte> theirs(pair.b.memory);
  CHECK(outcome(pair, [&](auto& burst) { return operation.post(burst, pair.a.sge(0, 8), to); }) == expected);
  CHECK(pair.a.qp().control().state() == QpState::error);
  CHECK(pair.b.qp().control().state() == QpState::error);
  CHECK(pair.b.memory == theirs);
  CHECK(pair.a.holds(0, 8, 5));
  CHECK(says(events_of(pair.b), driver::Event::Kind::qp_error, pair.b.qp().qpn(), "error state"));
  CHECK(says(events_of(pair.a), driver::Event::Kind::qp_error, pair.a.qp().qpn(), "error state"));
  REQUIRE(pair.until([&] { return pair.b.received.size() == 1; }));
  CHECK(pair.b.received[0].status == Status::flushed);
}

}  // namespace

TEST_SUITE("soft.errors.remote") {
  TEST_CASE("a key that does not exist is refused, for every operation") {
    for (const auto& operation : remote_operations)
      for (const std::uint32_t flip : {1U, 0x100U, 0x80000000U, 0xff00U}) {
        CAPTURE(operation.name);
        CAPTURE(flip);
        Pair pair;
        queue::Remote to = pair.b.remote(64);
        to.rkey ^= flip;
        check_remote_refusal(pair, operation, to);
      }
    for (const std::uint32_t key : {0U, 0xffffffffU, 0x100U, 1U}) {
      CAPTURE(key);
      Pair pair;
      check_remote_refusal(pair, remote_operations[0], {pair.b.remote(64).address, key});
    }
  }

  TEST_CASE("one byte beyond the region, before it or round the end of the address space is refused") {
    for (const auto& operation : remote_operations) {
      CAPTURE(operation.name);
      const bool atomic = operation.needs == Access::remote_atomic;
      // The region is [4096, 4096 + 64) of b's memory; everything posted is 8 bytes long.
      const std::uint64_t step = atomic ? 8 : 1;
      for (const std::int64_t offset : {std::int64_t{4096 - static_cast<std::int64_t>(step)},
                                        std::int64_t{4096 + 64 - 8 + static_cast<std::int64_t>(step)},
                                        std::int64_t{4096 + 64}, std::int64_t{1} << 40}) {
        CAPTURE(offset);
        Pair pair;
        auto window =
            pair.b.pd->register_memory(std::span(pair.b.memory).subspan(4096, 64), driver::all_access);
        const auto base = reinterpret_cast<std::uint64_t>(pair.b.memory.data());
        check_remote_refusal(pair, operation, {base + static_cast<std::uint64_t>(offset), window->rkey()});
      }
      for (const std::uint64_t address : {~std::uint64_t{0} - 7, ~std::uint64_t{0} << 3, std::uint64_t{0}}) {
        Pair pair;
        check_remote_refusal(pair, operation, {address, pair.b.region->rkey()});
      }
    }
  }

  TEST_CASE("the whole region, to its first and its last byte, is allowed") {
    Pair pair;
    auto window = pair.b.pd->register_memory(std::span(pair.b.memory).subspan(4096, 64), driver::all_access);
    pair.a.fill(0, 64, 3);
    CHECK(outcome(pair, [&](auto& burst) {
            return burst.write(pair.a.sge(0, 64), {pair.b.remote(4096).address, window->rkey()});
          }) == Status::success);
    CHECK(pair.b.holds(4096, 64, 3));
    CHECK(outcome(pair, [&](auto& burst) {
            return burst.fetch_add(pair.a.sge(100, 8), {pair.b.remote(4096 + 56).address, window->rkey()}, 1);
          }) == Status::success);
  }

  TEST_CASE("a request of no bytes needs no key, as on hardware") {
    Pair pair;
    CHECK(outcome(pair, [&](auto& burst) { return burst.write(Sge{}, {1, 2}); }) == Status::success);
    CHECK(outcome(pair, [&](auto& burst) { return burst.read(Sge{}, {1, 2}); }) == Status::success);
  }

  TEST_CASE("a message that runs over the region's end is refused before its first byte is written") {
    Pair pair;
    auto window = pair.b.pd->register_memory(std::span(pair.b.memory).subspan(0, 10'000), driver::all_access);
    pair.a.fill(0, 10'001, 3);
    CHECK(outcome(pair, [&](auto& burst) {
            return burst.write(pair.a.sge(0, 10'001), {pair.b.remote(0).address, window->rkey()});
          }) == Status::remote_access_error);
    CHECK(is_zero(pair.b, 0, 10'001));
  }

  TEST_CASE("each operation needs its own access of the region and of the QP") {
    const Access flags[] = {Access::remote_write, Access::remote_read, Access::remote_atomic};
    for (const auto& operation : remote_operations)
      for (unsigned mask = 0; mask < 8; ++mask)
        for (const bool of_region : {true, false}) {
          Access granted = Access::local_write;
          for (unsigned i = 0; i < 3; ++i)
            if ((mask & 1U << i) != 0) granted = granted | flags[i];
          CAPTURE(operation.name);
          CAPTURE(mask);
          CAPTURE(of_region);
          QpOptions options;
          if (!of_region) options.init.remote_access = granted;
          Pair pair(options, in_process(), 1 << 20, of_region ? granted : driver::all_access);
          // The receive for WRITE_WITH_IMM.
          pair.b.qp().post_receive(Sge{});
          pair.b.qp().publish_receives();
          const Status status = outcome(
              pair, [&](auto& burst) { return operation.post(burst, pair.a.sge(0, 8), pair.b.remote(64)); });
          const bool allowed = driver::allows(granted, operation.needs);
          CHECK(status == (allowed ? Status::success : Status::remote_access_error));
          if (!allowed) CHECK(is_zero(pair.b, 64, 8));
        }
  }

  TEST_CASE("a key of another protection domain is refused") {
    for (const auto& operation : remote_operations) {
      CAPTURE(operation.name);
      Pair pair;
      auto other = pair.device->create_pd();
      auto region = other->register_memory(pair.b.memory, driver::all_access);
      check_remote_refusal(pair, operation, {pair.b.remote(64).address, region->rkey()});
    }
  }

  TEST_CASE("a key of the sender's own region opens nothing at the peer unless the domain is the same") {
    Pair pair;
    check_remote_refusal(pair, remote_operations[0], {pair.a.remote(64).address, pair.a.region->rkey()});
  }

  TEST_CASE("after a region has ended its key is refused, and the next region's key is another one") {
    for (const auto& operation : remote_operations) {
      CAPTURE(operation.name);
      Pair pair;
      auto window = pair.b.pd->register_memory(std::span(pair.b.memory).subspan(0, 4096), driver::all_access);
      const std::uint32_t stale = window->rkey();
      window.reset();
      window = pair.b.pd->register_memory(std::span(pair.b.memory).subspan(0, 4096), driver::all_access);
      CHECK(window->rkey() != stale);
      check_remote_refusal(pair, operation, {pair.b.remote(64).address, stale});
    }
  }

  TEST_CASE("an atomic on an address that is not a multiple of 8 is an invalid request") {
    for (const std::size_t offset : {65UL, 68UL, 71UL})
      for (const auto& operation : remote_operations) {
        if (operation.needs != Access::remote_atomic) continue;
        CAPTURE(offset);
        Pair pair;
        check_remote_refusal(pair, operation, pair.b.remote(offset), Status::remote_invalid_request);
      }
  }

  TEST_CASE("a message longer than the receive buffer fails on both sides") {
    for (const std::uint32_t bytes : {65U, 1024U, 1025U, 100'000U})
      for (const bool is_inline : {true, false}) {
        if (is_inline && bytes > 200) continue;
        CAPTURE(bytes);
        Pair pair;
        pair.b.qp().post_receive(pair.b.sge(0, bytes - 1), 41);
        pair.b.qp().post_receive(pair.b.sge(0, bytes - 1), 42);
        pair.b.qp().publish_receives();
        pair.a.fill(0, bytes, 1);
        CHECK(outcome(pair, [&](auto& burst) {
                return is_inline ? burst.send_inline({pair.a.memory.data(), bytes})
                                 : burst.send(pair.a.sge(0, bytes));
              }) == Status::remote_invalid_request);
        REQUIRE(pair.until([&] { return pair.b.received.size() == 2; }));
        CHECK(pair.b.received[0].status == Status::local_length_error);
        CHECK(pair.b.received[0].wr_id == 41);
        CHECK(pair.b.received[1].status == Status::flushed);
        CHECK(pair.b.received[1].wr_id == 42);
        CHECK(is_zero(pair.b, bytes - 1, 64));
        CHECK(says(events_of(pair.b), driver::Event::Kind::qp_error, pair.b.qp().qpn(),
                   "longer than the receive buffer"));
      }
  }

  TEST_CASE("a receive buffer that its region does not cover, or does not let write, fails on both sides") {
    for (const int what : {0, 1, 2}) {
      CAPTURE(what);
      Pair pair;
      auto readable = pair.b.pd->register_memory(std::span(pair.b.memory).subspan(0, 4096), Access::none);
      auto other_pd = pair.device->create_pd();
      auto foreign = other_pd->register_memory(pair.b.memory, driver::all_access);
      const Sge buffers[] = {{pair.b.memory.data(), 64, readable->lkey()},
                             {pair.b.memory.data() + pair.b.memory.size() - 63, 64, pair.b.region->lkey()},
                             {pair.b.memory.data(), 64, foreign->lkey()}};
      pair.b.qp().post_receive(buffers[what], 9);
      pair.b.qp().publish_receives();
      pair.a.fill(0, 64, 3);
      CHECK(outcome(pair, [&](auto& burst) { return burst.send(pair.a.sge(0, 64)); }) ==
            Status::remote_operation_error);
      REQUIRE(pair.until([&] { return !pair.b.received.empty(); }));
      CHECK(pair.b.received[0].status == Status::local_protection_error);
      CHECK(pair.b.received[0].wr_id == 9);
      CHECK(is_zero(pair.b, 0, 64));
    }
  }

  TEST_CASE("SEND_WITH_INV of a key that may not be invalidated, or is another domain's, is refused") {
    for (const int what : {0, 1, 2}) {
      CAPTURE(what);
      Pair pair;
      auto other_pd = pair.device->create_pd();
      auto foreign = other_pd->register_memory(pair.b.memory, driver::all_access | Access::remote_invalidate);
      const std::uint32_t keys[] = {pair.b.region->rkey(), foreign->rkey(), 0x12345678U};
      pair.b.qp().post_receive(pair.b.sge(0, 64));
      pair.b.qp().publish_receives();
      CHECK(outcome(pair, [&](auto& burst) { return burst.send_with_inv(pair.a.sge(0, 8), keys[what]); }) ==
            Status::remote_access_error);
      // The key still opens what it opened.
      CHECK(pair.b.qp().control().state() == QpState::error);
    }
  }

  TEST_CASE("more READs than the responder agreed to end the connection instead of its memory") {
    QpOptions options;
    options.rtr.reads_in = 1;
    options.rts.reads_out = 16;
    Pair pair(options);
    {
      auto burst = pair.a.qp().send_burst();
      for (int i = 0; i < 16; ++i) burst.read(pair.a.sge(0, 100'000), pair.b.remote(0));
    }
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 16; }));
    bool refused = false;
    for (const auto& done : pair.a.sent) refused = refused || done.status == Status::remote_invalid_request;
    CHECK(refused);
  }
}
