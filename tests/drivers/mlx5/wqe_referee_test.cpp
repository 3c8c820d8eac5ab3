// What libmlx5 writes and what we write for the same requests, byte by byte: send ring, doorbell
// record, register. On a NIC, or on the software NIC through softmlx5: libmlx5 can't tell.
//
// Differences that the format allows, and that are looked at here:
// - the QP number in the ctrl segment: the twins are two QPs
// - CE: our queue signals some WQEs besides those that were asked for; never fewer
// - a datagram's UDP source port, which libmlx5 draws anew for each address handle
// - the compare operand of FETCH_ADD, which has none: libmlx5 leaves what stood there
// - bytes behind inline data, up to the end of its segment: nobody reads them
#include <algorithm>
#include <chrono>

#include "requests.hpp"

using namespace twins;

namespace {

constexpr std::size_t memory_bytes = 1 << 16;

struct Bench {
  explicit Bench(driver::Device& the_device)
      : device(the_device), pd(device.create_pd()), memory(memory_bytes) {
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 31 + i / 256);
    region = pd->register_memory(memory, driver::all_access);
  }
  ibv_pd* ibv() const { return static_cast<mlx5::Pd&>(*pd).get(); }
  ibv_context* context() const { return ibv()->context; }

  driver::Device& device;
  std::unique_ptr<driver::Pd> pd;
  std::vector<std::byte> memory;
  std::unique_ptr<driver::Region> region;
};

// Bytes of a WQE that mean something.
std::uint32_t meaningful_bytes(const Request& r, bool datagram, std::uint32_t segments) {
  if (!r.inline_data || r.list[0].bytes == 0) return segments * 16;
  const std::uint32_t head =
      16 + (datagram                                                                ? 48U
            : r.op == queue::Opcode::write || r.op == queue::Opcode::write_with_imm ? 16U
                                                                                    : 0U);
  return head + 4 + r.list[0].bytes;
}

// Compares the WQEs of `requests` from block `at` on; returns the block behind them. An empty text
// is agreement.
std::uint32_t compare(const std::byte* theirs, const std::byte* ours, std::uint32_t blocks, std::uint32_t at,
                      std::span<const Request> requests, bool datagram, std::string& difference) {
  const std::uint32_t ring_bytes = blocks * 64;
  for (const Request& r : requests) {
    const auto byte = [&](const std::byte* ring, std::uint32_t i) {
      return static_cast<unsigned>(ring[(at * 64 + i) & (ring_bytes - 1)]);
    };
    const std::uint32_t segments = byte(theirs, 7) & 0x3f;
    const std::uint32_t bytes = meaningful_bytes(r, datagram, segments);
    for (std::uint32_t i = 0; i < bytes; ++i) {
      if (i >= 4 && i <= 6) continue;
      if (datagram && (i == 30 || i == 31)) continue;
      if (r.op == queue::Opcode::fetch_add && i >= 40 && i < 48) continue;
      unsigned a = byte(theirs, i);
      const unsigned b = byte(ours, i);
      if (i == 11 && !r.signal) a |= b & queue::ctrl_signal;
      if (a != b && difference.empty())
        difference = "opcode " + std::string(name(r.op)) + (r.inline_data ? " inline" : "") + ", byte " +
                     std::to_string(i) + " of the WQE at block " + std::to_string(at) + ": libmlx5 " +
                     std::to_string(a) + ", we " + std::to_string(b);
    }
    at += (segments + 3) / 4;
  }
  return at;
}

struct Total {
  std::uint64_t requests = 0;
  std::uint64_t wraps = 0;
};

// Rings that fill once and never complete.
template <typename Post>
Total one_pass(driver::Device& device, const driver::QpConfig& config, unsigned seed, bool builder,
               Post post) {
  Bench bench(device);
  Theirs theirs(bench.context(), bench.ibv(), device, config, builder, Peer::nobody);
  Ours ours(device, *bench.pd, config, Peer::nobody);
  // libmlx5 may size two rings differently for the same request; a single pass needs no more than the
  // smaller one.
  const std::uint32_t blocks = std::min(theirs.blocks(), ours.blocks());
  Destination to;
  mlx5::Handle<ibv_ah> ah;
  if (config.transport == driver::Transport::ud) {
    const driver::PathConfig path = rtr_to(Peer::nobody, 0, device).path;
    ibv_ah_attr attr = verbs::to_ibv_path(path, 1, true);
    ah.reset(ibv_create_ah(bench.ibv(), &attr));
    REQUIRE(ah != nullptr);
    to.ah = ah.get();
    to.address = ours.port().create_address(*bench.pd, path, to.qpn, to.qkey);
  }
  Generator generator(seed, bench.memory, bench.region->lkey(), config);
  Total total;
  std::uint32_t at = 0;
  for (std::uint32_t n = seed % 7 + 1; at + 16 * n < blocks && total.requests + n < config.send_wrs;
       n = n % 9 + 1) {
    std::vector<Request> requests;
    for (std::uint32_t i = 0; i < n; ++i) requests.push_back(generator.next());
    REQUIRE(post(theirs.get(), requests, to));
    REQUIRE(post_ours(ours.qp(), requests, to));
    std::string difference;
    at = compare(theirs.ring(), ours.ring(), blocks, at, requests, config.transport == driver::Transport::ud,
                 difference);
    REQUIRE(difference == "");
    REQUIRE(theirs.send_record() == ours.send_record());
    REQUIRE(ours.send_record() == (at & 0xffff));
    total.requests += n;
  }
  return total;
}

driver::QpConfig config_of(driver::Transport transport, std::uint32_t sge, std::uint32_t inline_bytes) {
  return {.transport = transport,
          .send_wrs = 256,
          .recv_wrs = 256,
          .send_sge = sge,
          .recv_sge = 1,
          .inline_bytes = inline_bytes};
}

}  // namespace

TEST_SUITE("mlx5.referee") {
  TEST_CASE("our WQEs and doorbell records are libmlx5's, over thousands of requests made by chance") {
    const auto device = open_device();
    if (device == nullptr) return;
    Total total;
    for (const auto transport : {driver::Transport::rc, driver::Transport::ud})
      for (unsigned seed = 0; seed < 20; ++seed) {
        const auto config = config_of(transport,
                                      seed % 4 == 0   ? 1
                                      : seed % 4 == 1 ? 3
                                                      : 8,
                                      seed % 3 == 0 ? 28 : 220);
        CAPTURE(seed);
        CAPTURE(name(transport));
        total.requests += one_pass(*device, config, seed, false, post_send).requests;
        total.requests += one_pass(*device, config, 1000 + seed, true, post_wr).requests;
      }
    MESSAGE("requests compared: " << total.requests);
    CHECK(total.requests > 5000);
  }

  TEST_CASE("rings that go round are written alike at every offset, and everything completes on both sides") {
    const auto device = open_device();
    if (device == nullptr) return;
    Bench bench(*device);
    auto config = config_of(driver::Transport::rc, 5, 220);
    config.send_wrs = 16;
    Theirs theirs(bench.context(), bench.ibv(), *device, config, false, Peer::itself);
    Ours ours(*device, *bench.pd, config, Peer::itself);
    REQUIRE(theirs.blocks() == ours.blocks());
    const queue::Remote remote{reinterpret_cast<std::uint64_t>(bench.memory.data() + 40960),
                               bench.region->rkey()};
    Generator generator(5, std::span(bench.memory).first(16384), bench.region->lkey(), config, remote);
    const queue::Sge sink{bench.memory.data() + 16384, 24576, bench.region->lkey()};
    std::uint32_t at = 0;
    std::vector<bool> crossed(64, false);  // by how many 16-byte segments lay before the ring's end
    // Until the 16-bit producer index has gone round as well.
    for (int round = 0; at <= 0x10000 + 256; ++round) {
      std::vector<Request> requests;
      for (int i = 0; i < 1 + round % 3; ++i) requests.push_back(generator.next());
      requests.back().signal = true;
      for (std::size_t i = 0; i < requests.size(); ++i) {
        ibv_sge sge{reinterpret_cast<std::uint64_t>(sink.address), sink.bytes, sink.lkey};
        ibv_recv_wr wr{};
        wr.sg_list = &sge;
        wr.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        ibv_post_recv(theirs.get(), &wr, &bad);  // full: it has enough
        ours.qp().post_receive(sink);
      }
      ours.qp().publish_receives();
      REQUIRE(post_send(theirs.get(), requests, {}));
      REQUIRE(post_ours(ours.qp(), requests, {}));
      std::string difference;
      const std::uint32_t before = at;
      at = compare(theirs.ring(), ours.ring(), theirs.blocks(), at, requests, false, difference);
      REQUIRE(difference == "");
      REQUIRE(theirs.send_record() == ours.send_record());
      if (before / theirs.blocks() != at / theirs.blocks())
        crossed[theirs.blocks() - before % theirs.blocks()] = true;

      // Both to the end: the last one was signalled.
      const std::uint64_t wanted = requests.back().wr_id;
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      bool theirs_done = false;
      bool ours_done = false;
      while (!theirs_done || !ours_done) {
        ibv_wc wc[16];
        for (int n = ibv_poll_cq(theirs.cq(), 16, wc); n > 0; --n) {
          REQUIRE(wc[n - 1].status == IBV_WC_SUCCESS);
          theirs_done = theirs_done || wc[n - 1].wr_id == wanted;
        }
        queue::Completion done[16];
        for (std::uint32_t n = ours.cq().poll(done, 16); n > 0; --n) {
          INFO(describe(done[n - 1]));
          REQUIRE(done[n - 1].ok());
          ours_done = ours_done || (!is_receive(done[n - 1].opcode) && done[n - 1].wr_id == wanted);
        }
        REQUIRE(std::chrono::steady_clock::now() < limit);
      }
    }
    CHECK(std::count(crossed.begin(), crossed.end(), true) >= 3);
  }
}
