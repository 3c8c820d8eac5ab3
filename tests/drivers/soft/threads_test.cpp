// Engines on threads of their own, regions that come and go on others. For ThreadSanitizer, too.
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "pollen/base/error.hpp"
#include "process_rig.hpp"

using namespace rig;

namespace {

// What one thread tells the other, in place of a handshake.
struct Exchange {
  PeerInfo sides[2];
  std::barrier<> meet{2};
};

bool in_time(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!done())
    if (std::chrono::steady_clock::now() > end) return false;
  return true;
}

}  // namespace

TEST_SUITE("soft.threads") {
  TEST_CASE(
      "engines on two threads exchange messages of all sizes while a third registers and ends regions") {
    for (const bool copy : {false, true}) {
      CAPTURE(copy);
      soft::SoftOptions wire = in_process();
      wire.copy_payloads = copy;
      auto driver = soft::make_driver(wire);
      auto device = driver->open("");
      QpOptions options;
      options.rts.timeout = 0;  // a slow machine is not a lossy wire
      Exchange exchange;
      constexpr std::uint64_t total = 3000;
      std::atomic<bool> stop{false};
      std::atomic<int> failures{0};
      std::atomic<bool> b_done{false};

      const auto length = [](std::uint64_t n) { return static_cast<std::uint32_t>(8 + n * 37 % 5000); };
      std::thread first([&] {
        End end(*device, options);
        exchange.sides[0] = info_of(end);
        exchange.meet.arrive_and_wait();
        connect_to(end, end.qp(), exchange.sides[1], options);
        exchange.meet.arrive_and_wait();
        std::uint64_t posted = 0;
        std::uint64_t completed = 0;
        if (!in_time([&] {
              while (posted < total && posted < completed + 16) {
                end.fill(posted % 16 * 8192, length(posted), static_cast<unsigned>(posted));
                end.qp().send_burst().send(end.sge(posted % 16 * 8192, length(posted)), {.wr_id = posted});
                ++posted;
              }
              end.turn();
              for (const auto& done : end.sent) {
                if (!done.ok() || done.wr_id != completed) ++failures;
                ++completed;
              }
              end.sent.clear();
              return completed == total;
            }))
          ++failures;
        in_time([&] {
          end.turn();
          return b_done.load();
        });
        exchange.meet.arrive_and_wait();
      });
      std::thread second([&] {
        End end(*device, options);
        exchange.sides[1] = info_of(end);
        std::uint64_t buffers = 0;
        for (; buffers < 32; ++buffers) end.qp().post_receive(end.sge(buffers % 32 * 8192, 8192), buffers);
        end.qp().publish_receives();
        exchange.meet.arrive_and_wait();
        connect_to(end, end.qp(), exchange.sides[0], options);
        exchange.meet.arrive_and_wait();
        std::uint64_t seen = 0;
        if (!in_time([&] {
              end.turn();
              for (const auto& done : end.received) {
                if (!done.ok() || done.wr_id != seen || done.byte_len != length(seen) ||
                    !end.holds(seen % 32 * 8192, done.byte_len, static_cast<unsigned>(seen)))
                  ++failures;
                ++seen;
                end.qp().post_receive(end.sge(buffers % 32 * 8192, 8192), buffers);
                ++buffers;
              }
              end.qp().publish_receives();
              end.received.clear();
              return seen == total;
            }))
          ++failures;
        b_done = true;
        exchange.meet.arrive_and_wait();
      });
      std::thread third([&] {
        auto pd = device->create_pd();
        std::vector<std::byte> memory(1 << 16);
        std::vector<std::unique_ptr<driver::Region>> regions;
        while (!stop) {
          regions.push_back(pd->register_memory(memory, driver::all_access));
          if (regions.size() > 20) regions.erase(regions.begin());
        }
      });
      first.join();
      second.join();
      stop = true;
      third.join();
      CHECK(failures == 0);
    }
  }

  TEST_CASE("once a region has ended nothing writes to its memory") {
    // One thread runs two engines, of which one writes to the region all the time; the other ends the
    // region and at once takes the memory for its own use.
    auto driver = soft::make_driver(in_process());
    auto device = driver->open("");
    std::atomic<bool> stop{false};
    struct Target {
      std::atomic<std::uint32_t> rkey{0};
      driver::Pd* pd = nullptr;
    } target;
    std::vector<std::byte> memory(32'000);
    std::barrier meet(2);
    std::atomic<std::uint64_t> writes{0};
    std::thread engines([&] {
      QpOptions options;
      options.rts.timeout = 0;
      Pair pair(options, in_process());
      // Regions belong to a device: both ends and the region to that of the pair.
      target.pd = pair.b.pd.get();
      meet.arrive_and_wait();
      std::uint32_t refused = 0;
      while (!stop) {
        const std::uint32_t rkey = target.rkey.load(std::memory_order_acquire);
        if (rkey == 0 || rkey == refused) {
          pair.a.turn();
          pair.b.turn();
          std::this_thread::yield();
          continue;
        }
        queue::Qp& a = pair.a.add_qp(options);
        queue::Qp& b = pair.b.add_qp(options);
        connect(pair.a, a, pair.b, b, options);
        pair.a.sent.clear();
        while (pair.a.sent.empty() || pair.a.sent.back().ok()) {
          {
            auto burst = a.send_burst();
            while (
                burst.write(pair.a.sge(0, 32'000), {reinterpret_cast<std::uint64_t>(memory.data()), rkey})) {
            }
          }
          pair.a.turn();
          pair.b.turn();
          writes += pair.a.sent.size();
          if (stop) break;
        }
        refused = rkey;
        for (int i = 0; i < 20; ++i) {
          pair.a.turn();
          pair.b.turn();
        }
        pair.a.qps.back()->close(pair.a.port->progress());
        pair.b.qps.back()->close(pair.b.port->progress());
        pair.a.qps.pop_back();
        pair.b.qps.pop_back();
      }
      meet.arrive_and_wait();
    });
    meet.arrive_and_wait();
    bool untouched = true;
    for (int round = 0; round < 200; ++round) {
      auto region = target.pd->register_memory(memory, driver::all_access);
      const std::uint64_t before = writes;
      target.rkey.store(region->rkey(), std::memory_order_release);
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (writes == before && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      region.reset();
      std::memset(memory.data(), 0x5a, memory.size());
      for (int i = 0; i < 10; ++i) std::this_thread::yield();
      for (const std::byte byte : memory) untouched = untouched && byte == std::byte{0x5a};
    }
    target.rkey = 0;
    stop = true;
    meet.arrive_and_wait();
    engines.join();
    CHECK(untouched);
    CHECK(writes > 200);
  }

  TEST_CASE("ports opened at the same time by many threads get places of their own") {
    for (const auto kind : {soft::Wire::in_process, soft::Wire::shared_memory}) {
      CAPTURE(static_cast<int>(kind));
      soft::SoftOptions wire;
      wire.wire = kind;
      TempDir dir;
      wire.shm_dir = dir.path();
      {
        auto driver = soft::make_driver(wire);
        auto device = driver->open("");
        constexpr int threads = 4;
        for (int round = 0; round < 100; ++round) {
          std::barrier meet(threads);
          std::vector<std::uint32_t> qpns(threads);
          std::vector<std::string> errors(threads);
          std::vector<std::thread> all;
          for (int i = 0; i < threads; ++i)
            all.emplace_back([&, i] {
              const auto at = static_cast<std::size_t>(i);
              meet.arrive_and_wait();
              std::optional<End> end;
              try {
                end.emplace(*device, QpOptions{}, 4096);
                qpns[at] = end->qp().qpn();
              } catch (const Error& error) {
                errors[at] = error.what();
              }
              meet.arrive_and_wait();
            });
          for (auto& thread : all) thread.join();
          const std::set<std::uint32_t> different(qpns.begin(), qpns.end());
          for (const auto& error : errors) CHECK(error == "");
          REQUIRE(different.size() == threads);
        }
      }
      CHECK(dir.files().size() == (kind == soft::Wire::in_process ? 0 : 1));
    }
  }
}
