// Exactly once and in order, over wires that lose, double, reorder, delay and damage packets.
#include <fmt/format.h>
#include <pcap/pcap.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>

#include "pollen/drivers/soft/faults.hpp"
#include "pollen/drivers/soft/roce.hpp"
#include "rig.hpp"

using namespace rig;

namespace {

const char* const wires[] = {
    "loss=0.08",      "dup=0.2",      "reorder=0.2:8",
    "delay=0.2:40us", "corrupt=0.08", "loss=0.03,dup=0.05,reorder=0.1:5,delay=0.05:60us,corrupt=0.03",
};
constexpr std::uint64_t seeds[] = {1, 2, 3};

soft::SoftOptions faulty(const std::string& wire, std::uint64_t seed) {
  soft::SoftOptions options = in_process();
  options.faults = soft::parse_faults(fmt::format("{},seed={}", wire, seed));
  return options;
}

QpOptions quick(std::uint32_t mtu_bytes = 256) {
  QpOptions options;
  options.rtr.mtu_bytes = mtu_bytes;
  options.rtr.min_rnr_timer = 1;  // 10 µs
  options.rts.timeout = 5;        // 131 µs
  return options;
}

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// Message n: its length and its bytes follow from n, so that a wrong one is seen whatever it is.
std::uint32_t length_of(std::uint64_t n) { return static_cast<std::uint32_t>(8 + mix(n) % 2000); }
void write_message(std::byte* at, std::uint64_t n) {
  const std::uint32_t bytes = length_of(n);
  std::memcpy(at, &n, 8);
  for (std::uint32_t i = 8; i < bytes; ++i) at[i] = static_cast<std::byte>(mix(n) + i * 31);
}
bool is_message(const std::byte* at, std::uint64_t n, std::uint32_t bytes) {
  std::byte expected[2048];
  write_message(expected, n);
  return bytes == length_of(n) && std::memcmp(at, expected, bytes) == 0;
}

template <typename Body>
void on_every_wire(Body&& body) {
  for (const std::string wire : wires)
    for (const std::uint64_t seed : seeds) {
      CAPTURE(wire);
      CAPTURE(seed);
      body(faulty(wire, seed));
    }
}

constexpr std::size_t slots = 16;
constexpr std::uint32_t slot_bytes = 2048;

// Takes what has completed off a, in order; false when something failed or is out of order.
bool take_sent(Pair& pair, std::uint64_t& completed) {
  for (const auto& done : pair.a.sent) {
    if (!done.ok() || done.wr_count != 1 || done.wr_id != completed) {
      MESSAGE(queue::describe(done));
      return false;
    }
    ++completed;
  }
  pair.a.sent.clear();
  return true;
}

}  // namespace

TEST_SUITE("soft.lossy") {
  TEST_CASE("SENDs arrive once, whole and in order") {
    on_every_wire([](const soft::SoftOptions& wire) {
      constexpr std::uint64_t total = 400;
      Pair pair(quick(), wire);
      std::uint64_t posted = 0;
      std::uint64_t completed = 0;
      std::uint64_t buffers = 0;
      std::uint64_t seen = 0;
      bool good = true;
      REQUIRE(pair.until([&] {
        while (buffers < seen + 8) {
          pair.b.qp().post_receive(pair.b.sge(buffers % 8 * slot_bytes, slot_bytes), buffers);
          ++buffers;
        }
        pair.b.qp().publish_receives();
        while (posted < total && posted < completed + slots) {
          const std::size_t at = posted % slots * slot_bytes;
          write_message(pair.a.memory.data() + at, posted);
          pair.a.qp().send_burst().send(pair.a.sge(at, length_of(posted)), {.wr_id = posted});
          ++posted;
        }
        good = take_sent(pair, completed);
        for (const auto& done : pair.b.received) {
          good = good && done.ok() && done.wr_id == seen &&
                 is_message(pair.b.memory.data() + seen % 8 * slot_bytes, seen, done.byte_len);
          ++seen;
        }
        pair.b.received.clear();
        return !good || (seen == total && completed == total);
      }));
      CHECK(good);
      CHECK(seen == total);
      CHECK(completed == total);
    });
  }

  TEST_CASE("WRITE_WITH_IMMs are in memory when their immediate comes, once and in order") {
    on_every_wire([](const soft::SoftOptions& wire) {
      constexpr std::uint64_t total = 400;
      Pair pair(quick(), wire);
      std::uint64_t posted = 0;
      std::uint64_t completed = 0;
      std::uint64_t buffers = 0;
      std::uint64_t seen = 0;
      bool good = true;
      REQUIRE(pair.until([&] {
        while (buffers < seen + 32) {
          pair.b.qp().post_receive(Sge{}, buffers);
          ++buffers;
        }
        pair.b.qp().publish_receives();
        while (posted < total && posted < completed + slots) {
          const std::size_t from = posted % slots * slot_bytes;
          write_message(pair.a.memory.data() + from, posted);
          pair.a.qp().send_burst().write_with_imm(pair.a.sge(from, length_of(posted)),
                                                  pair.b.remote(posted % 64 * slot_bytes),
                                                  static_cast<std::uint32_t>(posted), {.wr_id = posted});
          ++posted;
        }
        good = take_sent(pair, completed);
        for (const auto& done : pair.b.received) {
          good = good && done.ok() && done.imm == seen && done.wr_id == seen &&
                 is_message(pair.b.memory.data() + seen % 64 * slot_bytes, seen, done.byte_len);
          ++seen;
        }
        pair.b.received.clear();
        return !good || (seen == total && completed == total);
      }));
      CHECK(good);
      CHECK(seen == total);
    });
  }

  TEST_CASE("READs bring what is there, in order, also when a response is lost in part") {
    on_every_wire([](const soft::SoftOptions& wire) {
      constexpr std::uint64_t total = 300;
      Pair pair(quick(), wire);
      for (std::uint64_t n = 0; n < 100; ++n) write_message(pair.b.memory.data() + n * slot_bytes, n);
      std::uint64_t posted = 0;
      std::uint64_t completed = 0;
      bool good = true;
      REQUIRE(pair.until([&] {
        while (posted < total && posted < completed + slots) {
          const std::size_t to = posted % slots * slot_bytes;
          std::memset(pair.a.memory.data() + to, 0xee, slot_bytes);
          pair.a.qp().send_burst().read(pair.a.sge(to, length_of(posted % 100)),
                                        pair.b.remote(posted % 100 * slot_bytes), {.wr_id = posted});
          ++posted;
        }
        for (const auto& done : pair.a.sent) {
          if (!done.ok()) MESSAGE(queue::describe(done));
          good = good && done.ok() && done.wr_id == completed &&
                 is_message(pair.a.memory.data() + completed % slots * slot_bytes, completed % 100,
                            done.byte_len);
          ++completed;
        }
        pair.a.sent.clear();
        return !good || completed == total;
      }));
      CHECK(good);
      CHECK(completed == total);
    });
  }

  TEST_CASE("atomics are executed exactly once, however often they are sent") {
    on_every_wire([](const soft::SoftOptions& wire) {
      constexpr std::uint64_t total = 1500;
      Pair pair(quick(), wire);
      const auto* counter = reinterpret_cast<const std::uint64_t*>(pair.b.memory.data());
      std::uint64_t posted = 0;
      std::uint64_t completed = 0;
      bool good = true;
      REQUIRE(pair.until([&] {
        while (posted < total && posted < completed + slots) {
          pair.a.qp().send_burst().fetch_add(pair.a.sge(posted % slots * 8, 8), pair.b.remote(0), 1,
                                             {.wr_id = posted});
          ++posted;
        }
        for (const auto& done : pair.a.sent) {
          std::uint64_t before;
          std::memcpy(&before, pair.a.memory.data() + completed % slots * 8, 8);
          if (!done.ok()) MESSAGE(queue::describe(done));
          good = good && done.ok() && done.wr_id == completed && before == completed;
          ++completed;
        }
        pair.a.sent.clear();
        return !good || completed == total;
      }));
      CHECK(good);
      CHECK(*counter == total);
    });
  }

  TEST_CASE(
      "an atomic's answer is kept while the peer may ask for it, though READs are asked for again and "
      "again") {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      CAPTURE(seed);
      constexpr std::uint64_t total = 4000;
      Pair pair(quick(), faulty("loss=0.12", seed));
      const auto* counter = reinterpret_cast<const std::uint64_t*>(pair.b.memory.data());
      std::uint64_t posted = 0;
      std::uint64_t completed = 0;
      bool good = true;
      REQUIRE(pair.until([&] {
        while (posted < total && posted < completed + slots) {
          auto burst = pair.a.qp().send_burst();
          const Sge local = pair.a.sge(posted % slots * 8, 8);
          if (posted % 4 == 0)
            burst.fetch_add(local, pair.b.remote(0), 1, {.wr_id = posted});
          else
            burst.read(local, pair.b.remote(8), {.wr_id = posted});
          ++posted;
        }
        good = take_sent(pair, completed);
        return !good || completed == total;
      }));
      CHECK(good);
      CHECK(*counter == total / 4);
    }
  }

  TEST_CASE(
      "all operations mixed complete in order, and what they leave is what one after the other leaves") {
    on_every_wire([](const soft::SoftOptions& wire) {
      constexpr std::uint64_t total = 600;
      Pair pair(quick(1024), wire);
      const auto* counter = reinterpret_cast<const std::uint64_t*>(pair.b.memory.data());
      std::uint64_t posted = 0;
      std::uint64_t completed = 0;
      std::uint64_t buffers = 0;
      std::uint64_t seen = 0;
      bool good = true;
      REQUIRE(pair.until([&] {
        while (buffers < seen + 20) {
          pair.b.qp().post_receive(pair.b.sge(400'000 + buffers % 20 * slot_bytes, slot_bytes), buffers);
          ++buffers;
        }
        pair.b.qp().publish_receives();
        while (posted < total && posted < completed + slots) {
          const std::uint64_t n = posted++;
          const std::size_t slot = n % slots * slot_bytes;
          auto burst = pair.a.qp().send_burst();
          // Groups of five: fetch_add, WRITE, READ back of it, SEND, NOP.
          const std::size_t shared = 8192 + n / 5 % 64 * slot_bytes;
          switch (n % 5) {
            case 0:
              burst.fetch_add(pair.a.sge(slot, 8), pair.b.remote(0), 1, {.wr_id = n});
              break;
            case 1:
              write_message(pair.a.memory.data() + slot, n / 5);
              burst.write(pair.a.sge(slot, length_of(n / 5)), pair.b.remote(shared), {.wr_id = n});
              break;
            case 2:
              burst.read(pair.a.sge(slot, length_of(n / 5)), pair.b.remote(shared), {.wr_id = n});
              break;
            case 3:
              write_message(pair.a.memory.data() + slot, n / 5);
              burst.send(pair.a.sge(slot, length_of(n / 5)), {.wr_id = n});
              break;
            default:
              burst.nop({.wr_id = n});
              break;
          }
        }
        for (const auto& done : pair.a.sent) {
          const std::byte* slot = pair.a.memory.data() + completed % slots * slot_bytes;
          std::uint64_t before;
          std::memcpy(&before, slot, 8);
          if (!done.ok()) MESSAGE(queue::describe(done));
          good = good && done.ok() && done.wr_id == completed;
          if (completed % 5 == 0) good = good && before == completed / 5;
          if (completed % 5 == 2) good = good && is_message(slot, completed / 5, done.byte_len);
          ++completed;
        }
        pair.a.sent.clear();
        for (const auto& done : pair.b.received) {
          good = good && done.ok() && done.wr_id == seen &&
                 is_message(pair.b.memory.data() + 400'000 + seen % 20 * slot_bytes, seen, done.byte_len);
          ++seen;
        }
        pair.b.received.clear();
        return !good || (completed == total && seen == total / 5);
      }));
      CHECK(good);
      CHECK(*counter == total / 5);
    });
  }

  TEST_CASE("a receiver without buffers and a lossy wire together lose nothing") {
    for (const std::uint64_t seed : seeds) {
      CAPTURE(seed);
      Pair pair(quick(), faulty("loss=0.1,dup=0.1", seed));
      constexpr std::uint64_t total = 100;
      std::uint64_t posted = 0;
      std::uint64_t completed = 0;
      std::uint64_t seen = 0;
      std::uint64_t turns = 0;
      bool good = true;
      REQUIRE(pair.until([&] {
        if (++turns % 50 == 0 && pair.b.qp().rq().outstanding() == 0) {
          pair.b.qp().post_receive(pair.b.sge(0, slot_bytes), seen);
          pair.b.qp().publish_receives();
        }
        while (posted < total && posted < completed + slots) {
          const std::size_t at = posted % slots * slot_bytes;
          write_message(pair.a.memory.data() + at, posted);
          pair.a.qp().send_burst().send(pair.a.sge(at, length_of(posted)), {.wr_id = posted});
          ++posted;
        }
        good = take_sent(pair, completed);
        for (const auto& done : pair.b.received) {
          good = good && done.ok() && is_message(pair.b.memory.data(), seen, done.byte_len);
          ++seen;
        }
        pair.b.received.clear();
        return !good || (completed == total && seen == total);
      }));
      CHECK(good);
    }
  }

  TEST_CASE("a wire that loses everything ends in retry exceeded, after as many tries as were asked for") {
    const std::string file =
        (std::filesystem::temp_directory_path() / fmt::format("pollen-lossy-{}.pcap", getpid())).string();
    {
      soft::SoftOptions wire = faulty("loss=1", 1);
      wire.pcap_path = file;
      QpOptions options = quick();
      options.rts.timeout = 3;
      options.rts.retry_count = 4;
      Pair pair(options, wire);
      pair.a.qp().send_burst().send(pair.a.sge(0, 8));
      REQUIRE(pair.until([&] { return !pair.a.sent.empty(); }));
      CHECK(pair.a.sent[0].status == Status::retry_exceeded);
    }
    char error[PCAP_ERRBUF_SIZE];
    pcap_t* capture = pcap_open_offline(file.c_str(), error);
    REQUIRE(capture != nullptr);
    pcap_pkthdr* header = nullptr;
    const u_char* data = nullptr;
    int frames = 0;
    while (pcap_next_ex(capture, &header, &data) == 1) ++frames;
    pcap_close(capture);
    std::filesystem::remove(file);
    CHECK(frames == 5);
  }

  TEST_CASE("faults do happen: packets are sent again on a lossy wire and none on a whole one") {
    const std::string file =
        (std::filesystem::temp_directory_path() / fmt::format("pollen-lossy-{}.pcap", getpid())).string();
    for (const char* wire : {"loss=0.05", "corrupt=0.05", "seed=9"}) {
      CAPTURE(wire);
      {
        soft::SoftOptions options = in_process();
        options.faults = soft::parse_faults(wire);
        options.pcap_path = file;
        Pair pair(quick(), options);
        for (std::uint64_t n = 0; n < 100; ++n) {
          pair.a.sent.clear();
          pair.a.qp().send_burst().write(pair.a.sge(0, 2000), pair.b.remote(0));
          REQUIRE(pair.until([&] { return !pair.a.sent.empty(); }));
          REQUIRE(pair.a.sent[0].ok());
        }
      }
      char error[PCAP_ERRBUF_SIZE];
      pcap_t* capture = pcap_open_offline(file.c_str(), error);
      REQUIRE(capture != nullptr);
      pcap_pkthdr* header = nullptr;
      const u_char* data = nullptr;
      std::map<std::uint32_t, int> requests;
      while (pcap_next_ex(capture, &header, &data) == 1) {
        const auto decoded = soft::decode({reinterpret_cast<const std::byte*>(data), header->caplen});
        REQUIRE(decoded);
        if (decoded.packet.op <= soft::PacketOp::write_only) ++requests[decoded.packet.psn];
      }
      pcap_close(capture);
      std::filesystem::remove(file);
      CHECK(requests.size() == 800);
      int again = 0;
      for (const auto& [psn, times] : requests) again += times - 1;
      CHECK((again > 0) == (std::string_view(wire) != "seed=9"));
    }
  }
}
