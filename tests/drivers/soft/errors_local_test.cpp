// Requests that fail at home, and memory that is taken back too early.
#include <fmt/format.h>

#include "errors.hpp"
#include "pollen/base/error.hpp"

using namespace rig;

TEST_SUITE("soft.errors.local") {
  TEST_CASE("a gather entry that its key does not cover fails at home, and nothing reaches the peer") {
    for (int what = 0; what < 7; ++what) {
      CAPTURE(what);
      Pair pair;
      auto other_pd = pair.device->create_pd();
      auto foreign = other_pd->register_memory(pair.a.memory, driver::all_access);
      auto small = pair.a.pd->register_memory(std::span(pair.a.memory).subspan(1000, 64), driver::all_access);
      auto ended = pair.a.pd->register_memory(pair.a.memory, driver::all_access);
      const std::uint32_t stale = ended->lkey();
      ended.reset();
      const std::byte* m = pair.a.memory.data();
      const Sge bad[] = {{m, 64, pair.a.region->lkey() ^ 1},
                         {m, 64, foreign->lkey()},
                         {m + 1000, 65, small->lkey()},
                         {m + 999, 64, small->lkey()},
                         {reinterpret_cast<const void*>(~std::uintptr_t{0} - 7), 64, pair.a.region->lkey()},
                         {m, 64, stale},
                         {m, 64, 0}};
      pair.b.qp().post_receive(pair.b.sge(0, 4096), 1);
      pair.b.qp().publish_receives();
      const bool also_second_entry = what % 2 == 1;
      const Sge both[] = {pair.a.sge(0, 64), bad[what]};
      CHECK(outcome(pair, [&](auto& burst) {
              return also_second_entry ? burst.send(std::span<const Sge>(both)) : burst.send(bad[what]);
            }) == Status::local_protection_error);
      CHECK(pair.a.qp().control().state() == QpState::error);
      CHECK_FALSE(pair.until([&] { return !pair.b.received.empty(); }, std::chrono::milliseconds(2)));
      CHECK(pair.b.qp().control().state() == QpState::rts);
    }
  }

  TEST_CASE("a READ or an atomic into memory without local write access fails at home") {
    for (const auto& operation : remote_operations) {
      CAPTURE(operation.name);
      Pair pair;
      auto readable =
          pair.a.pd->register_memory(std::span(pair.a.memory).subspan(0, 4096), Access::remote_read);
      const Sge local{pair.a.memory.data(), 8, readable->lkey()};
      pair.b.qp().post_receive(Sge{});
      pair.b.qp().publish_receives();
      const bool writes_here = operation.needs != Access::remote_write;
      CHECK(outcome(pair, [&](auto& burst) { return operation.post(burst, local, pair.b.remote(64)); }) ==
            (writes_here ? Status::local_protection_error : Status::success));
      if (operation.needs == Access::remote_atomic) CHECK(is_zero(pair.b, 64, 8));
    }
  }

  TEST_CASE("a region that ends while a request waits fails that request and no earlier one") {
    Pair pair;
    auto window = pair.a.pd->register_memory(std::span(pair.a.memory).subspan(0, 4096), driver::all_access);
    {
      auto burst = pair.a.qp().send_burst();
      burst.write(pair.a.sge(8192, 100), pair.b.remote(0), {.wr_id = 1});
      burst.write({pair.a.memory.data(), 100, window->lkey()}, pair.b.remote(0), {.wr_id = 2});
      burst.write(pair.a.sge(8192, 100), pair.b.remote(0), {.wr_id = 3});
    }
    window.reset();
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 3; }));
    CHECK(pair.a.sent[0].ok());
    CHECK(pair.a.sent[1].status == Status::local_protection_error);
    CHECK(pair.a.sent[1].wr_id == 2);
    CHECK(pair.a.sent[2].status == Status::flushed);
  }

  TEST_CASE("memory without local write access can't be opened for remote writes, in words") {
    Pair pair;
    for (const Access access : {Access::remote_write, Access::remote_atomic}) {
      try {
        auto region = pair.a.pd->register_memory(pair.a.memory, access);
        FAIL("it was registered");
      } catch (const Error& error) {
        CHECK(std::string(error.what()).find("local write access") != std::string::npos);
      }
    }
    CHECK_THROWS_AS(pair.a.pd->register_memory({}, driver::all_access), Error);
  }
}

TEST_SUITE("soft.errors.memory") {
  TEST_CASE("memory that the sender has taken back is not read by packets that are under way") {
    for (const bool read : {false, true}) {
      CAPTURE(read);
      QpOptions options;
      options.rts.timeout = 5;
      options.rts.retry_count = 2;
      Pair pair(options);
      End& owner = read ? pair.b : pair.a;
      auto buffer = std::make_unique<std::vector<std::byte>>(64'000);
      auto window = owner.pd->register_memory(*buffer, driver::all_access);
      pair.b.qp().post_receive(pair.b.sge(0, 64'000));
      pair.b.qp().publish_receives();
      const std::byte* at = buffer->data();
      if (read)
        pair.a.qp().send_burst().read(pair.a.sge(0, 64'000),
                                      {reinterpret_cast<std::uint64_t>(at), window->rkey()});
      else
        pair.a.qp().send_burst().send(Sge{at, 64'000, window->lkey()});
      pair.a.turn();
      if (read) pair.b.turn();
      // The packets lie in the lane. What was taken back belongs to the program again.
      if (!read) owner.qp().control().to_error();
      window.reset();
      buffer.reset();
      // AddressSanitizer watches this.
      for (int i = 0; i < 1000; ++i) {
        pair.a.turn();
        pair.b.turn();
      }
      REQUIRE(pair.until([&] { return !pair.a.sent.empty(); }));
      CHECK_FALSE(pair.a.sent[0].ok());
    }
  }
}
