// Datagrams: what arrives with them, and what is dropped in silence.
#include <algorithm>
#include <string>

#include "pollen/drivers/soft/roce.hpp"
#include "rig.hpp"

using namespace rig;
using driver::QpState;

namespace {

constexpr std::uint32_t grh = 40;

QpOptions ud_options() {
  QpOptions options;
  options.config.transport = driver::Transport::ud;
  return options;
}

queue::Address address_of(End& from, const driver::Gid& gid, std::uint32_t qpn,
                          std::uint32_t qkey = 0x11111111, std::uint32_t gid_index = 1) {
  driver::PathConfig path;
  path.remote_gid = gid;
  path.local_gid_index = gid_index;
  return from.port->create_address(*from.pd, path, qpn, qkey);
}

void post(End& end, std::size_t offset, std::uint32_t bytes, std::uint64_t wr_id = 0) {
  REQUIRE(end.qp().post_receive(end.sge(offset, bytes), wr_id));
  end.qp().publish_receives();
}

// Runs both ends for a while in which nothing is expected at b.
bool silence(Pair& pair, std::size_t received = 0) {
  for (int i = 0; i < 300; ++i) {
    pair.a.turn();
    pair.b.turn();
  }
  return pair.b.received.size() == received;
}

}  // namespace

TEST_SUITE("soft.ud") {
  TEST_CASE("a datagram arrives behind 40 bytes of GRH, with its sender's number and its immediate") {
    Pair pair(ud_options());
    const auto to_b = address_of(pair.a, pair.b.gid, pair.b.qp().qpn());
    for (const std::uint32_t bytes : {0U, 1U, 64U, 65U, 1000U, 4096U})
      for (const bool imm : {false, true}) {
        CAPTURE(bytes);
        pair.a.fill(0, bytes, bytes);
        pair.a.sent.clear();
        pair.b.received.clear();
        post(pair.b, 8192, bytes + grh, 7);
        {
          auto burst = pair.a.qp().send_burst();
          REQUIRE((imm ? burst.send_to_with_imm(to_b, pair.a.sge(0, bytes), 0xcafe0001)
                       : burst.send_to(to_b, pair.a.sge(0, bytes))));
        }
        REQUIRE(pair.until([&] { return pair.a.sent.size() == 1 && pair.b.received.size() == 1; }));
        const Completion& got = pair.b.received[0];
        CHECK(pair.a.sent[0].ok());
        CHECK(got.ok());
        CHECK(got.byte_len == bytes + grh);
        CHECK(got.grh_present);
        CHECK(got.src_qpn == pair.a.qp().qpn());
        CHECK(got.wr_id == 7);
        CHECK(got.has_imm() == imm);
        if (imm) CHECK(got.imm == 0xcafe0001);
        CHECK(pair.b.holds(8192 + grh, bytes, bytes));
      }
  }

  TEST_CASE("the GRH of an IPv4-mapped sender is an IPv4 header in its last 20 bytes") {
    Pair pair(ud_options());
    post(pair.b, 0, 200);
    pair.a.qp().send_burst().send_to(address_of(pair.a, pair.b.gid, pair.b.qp().qpn()), pair.a.sge(0, 100));
    REQUIRE(pair.until([&] { return !pair.b.received.empty(); }));
    const auto at = [&](std::size_t i) { return std::to_integer<unsigned>(pair.b.memory[20 + i]); };
    CHECK(at(0) == 0x45);
    // UDP 8, BTH 12, DETH 8, ICRC 4.
    CHECK((at(2) << 8 | at(3)) == 20 + 8 + 12 + 8 + 100 + 4);
    CHECK(at(9) == 17);
    unsigned sum = 0;
    for (std::size_t i = 0; i < 20; i += 2) sum += at(i) << 8 | at(i + 1);
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    CHECK(sum == 0xffff);
    CHECK(std::equal(pair.a.gid.bytes.begin() + 12, pair.a.gid.bytes.end(), pair.b.memory.begin() + 32,
                     [](std::uint8_t x, std::byte y) { return std::byte{x} == y; }));
    CHECK(std::equal(pair.b.gid.bytes.begin() + 12, pair.b.gid.bytes.end(), pair.b.memory.begin() + 36,
                     [](std::uint8_t x, std::byte y) { return std::byte{x} == y; }));
  }

  TEST_CASE("the GRH of a link-local sender is an IPv6 header with both GIDs") {
    Pair pair(ud_options());
    const driver::Gid gid = pair.device->query_port().gids.at(0).gid;
    post(pair.b, 0, 200);
    pair.a.qp().send_burst().send_to(address_of(pair.a, gid, pair.b.qp().qpn(), 0x11111111, 0),
                                     pair.a.sge(0, 100));
    REQUIRE(pair.until([&] { return !pair.b.received.empty(); }));
    CHECK((pair.b.memory[0] >> 4) == std::byte{6});
    CHECK(std::memcmp(pair.b.memory.data() + 8, gid.bytes.data(), 16) == 0);
    CHECK(std::memcmp(pair.b.memory.data() + 24, gid.bytes.data(), 16) == 0);
  }

  TEST_CASE("inline and gathered datagrams arrive whole, at every place in the ring") {
    Pair pair(ud_options());
    const auto to_b = address_of(pair.a, pair.b.gid, pair.b.qp().qpn());
    for (std::uint32_t bytes = 0; bytes <= 220; ++bytes) {
      pair.a.fill(0, bytes, bytes);
      pair.a.sent.clear();
      pair.b.received.clear();
      post(pair.b, 4096, 300);
      post(pair.b, 8192, 300);
      {
        auto burst = pair.a.qp().send_burst();
        REQUIRE(burst.send_inline_to(to_b, {pair.a.memory.data(), bytes}));
        const Sge list[3] = {pair.a.sge(0, bytes / 2), pair.a.sge(bytes / 2, 0),
                             pair.a.sge(bytes / 2, bytes - bytes / 2)};
        REQUIRE(burst.send_to(to_b, std::span<const Sge>(list)));
      }
      REQUIRE(pair.until([&] { return pair.a.sent.size() == 2 && pair.b.received.size() == 2; }));
      REQUIRE(pair.b.holds(4096 + grh, bytes, bytes));
      REQUIRE(pair.b.holds(8192 + grh, bytes, bytes));
    }
  }

  TEST_CASE(
      "a wrong queue key, a QP that does not exist, or no receive: dropped, and the sender is content") {
    Pair pair(ud_options());
    const std::uint32_t qpn = pair.b.qp().qpn();
    const auto wrong_key = address_of(pair.a, pair.b.gid, qpn, 0x11111110);
    const auto nobody = address_of(pair.a, pair.b.gid, qpn + 5);
    const auto no_engine = address_of(pair.a, pair.b.gid, qpn + (900U << 14));
    const auto right = address_of(pair.a, pair.b.gid, qpn);
    driver::Gid stranger = pair.b.gid;
    stranger.bytes[15] = 77;
    const auto no_device = address_of(pair.a, stranger, qpn);
    pair.a.qp().send_burst().send_to(right, pair.a.sge(0, 8), {.wr_id = 0});  // no receive yet
    CHECK(silence(pair));
    post(pair.b, 0, 200, 1);
    {
      auto burst = pair.a.qp().send_burst();
      burst.send_to(wrong_key, pair.a.sge(0, 8), {.wr_id = 1});
      burst.send_to(nobody, pair.a.sge(0, 8), {.wr_id = 2});
      burst.send_to(no_engine, pair.a.sge(0, 8), {.wr_id = 3});
      burst.send_to(no_device, pair.a.sge(0, 8), {.wr_id = 4});
    }
    CHECK(silence(pair));
    pair.a.fill(0, 8, 4);
    pair.a.qp().send_burst().send_to(right, pair.a.sge(0, 8), {.wr_id = 5});
    REQUIRE(pair.until([&] { return pair.b.received.size() == 1 && pair.a.sent.size() == 6; }));
    CHECK(pair.b.holds(grh, 8, 4));
    for (std::uint64_t i = 0; i < 6; ++i) {
      CHECK(pair.a.sent[i].ok());
      CHECK(pair.a.sent[i].wr_id == i);
    }
    CHECK(pair.b.qp().control().state() == QpState::rts);
  }

  TEST_CASE("a queue key with its top bit set stands for the sender's own") {
    Pair pair(ud_options());
    post(pair.b, 0, 200);
    pair.a.qp().send_burst().send_to(address_of(pair.a, pair.b.gid, pair.b.qp().qpn(), 0x80000000),
                                     pair.a.sge(0, 8));
    CHECK(pair.until([&] { return !pair.b.received.empty(); }));
  }

  TEST_CASE("more than the MTU is refused at home and nothing is sent") {
    Pair pair(ud_options());
    post(pair.b, 0, 10'000);
    pair.a.qp().send_burst().send_to(address_of(pair.a, pair.b.gid, pair.b.qp().qpn()), pair.a.sge(0, 4097));
    REQUIRE(pair.until([&] { return !pair.a.sent.empty(); }));
    CHECK(pair.a.sent[0].status == Status::local_length_error);
    CHECK(silence(pair));
  }

  TEST_CASE("a datagram that its receive buffer can't hold fails that buffer") {
    Pair pair(ud_options());
    post(pair.b, 0, 107, 3);  // a byte less than GRH and data
    pair.a.qp().send_burst().send_to(address_of(pair.a, pair.b.gid, pair.b.qp().qpn()), pair.a.sge(0, 68));
    REQUIRE(pair.until([&] { return !pair.b.received.empty() && !pair.a.sent.empty(); }));
    CHECK(pair.b.received[0].status == Status::local_length_error);
    CHECK(pair.b.received[0].wr_id == 3);
    CHECK(pair.a.sent[0].ok());
  }

  TEST_CASE("connected operations are refused on a UD QP") {
    for (int what = 0; what < 3; ++what) {
      CAPTURE(what);
      Pair pair(ud_options());
      {
        auto burst = pair.a.qp().send_burst();
        if (what == 0) burst.write(pair.a.sge(0, 8), pair.b.remote(0));
        if (what == 1) burst.read(pair.a.sge(0, 8), pair.b.remote(0));
        if (what == 2) burst.fetch_add(pair.a.sge(0, 8), pair.b.remote(0), 1);
      }
      REQUIRE(pair.until([&] { return !pair.a.sent.empty(); }));
      CHECK(pair.a.sent[0].status == Status::local_qp_operation_error);
    }
  }

  TEST_CASE("an RC QP takes no datagram, and a UD QP no connected packet") {
    Pair pair(ud_options());
    QpOptions rc;
    queue::Qp& connected = pair.b.add_qp(rc);
    driver::RtrConfig rtr = rc.rtr;
    rtr.path.remote_gid = pair.a.gid;
    rtr.remote_qpn = pair.a.qp().qpn();
    rc.rts.timeout = 4;
    rc.rts.retry_count = 1;
    connected.connect(rc.init, rtr, rc.rts);
    connected.post_receive(pair.b.sge(0, 200));
    connected.publish_receives();
    post(pair.a, 0, 200);
    pair.a.qp().send_burst().send_to(address_of(pair.a, pair.b.gid, connected.qpn()), pair.a.sge(0, 8));
    connected.send_burst().send(pair.b.sge(0, 8));
    REQUIRE(pair.until([&] { return !pair.b.sent.empty(); }));
    CHECK(pair.b.sent[0].status == Status::retry_exceeded);
    CHECK(pair.a.received.empty());
    for (const auto& done : pair.b.received) CHECK(done.status == Status::flushed);
  }

  TEST_CASE("one QP hears many peers on many engines, and answers each by what came with its datagram") {
    const QpOptions options = ud_options();
    auto driver = soft::make_driver(in_process());
    auto device = driver->open("");
    End hub(*device, options);
    hub.qp().activate(options.init);
    constexpr std::size_t peers = 40;
    std::vector<std::unique_ptr<End>> ends;
    for (std::size_t i = 0; i < peers; ++i) {
      ends.push_back(std::make_unique<End>(*device, options, 4096));
      ends[i]->qp().activate(options.init);
      ends[i]->fill(0, 100, static_cast<unsigned>(i));
      post(*ends[i], 200, 200);
      REQUIRE(hub.qp().post_receive(hub.sge(i * 200, 200), i));
      hub.qp().publish_receives();
      ends[i]->qp().send_burst().send_to(address_of(*ends[i], hub.gid, hub.qp().qpn()), ends[i]->sge(0, 100));
      ends[i]->turn();
    }
    for (int i = 0; i < 100; ++i) hub.turn();
    REQUIRE(hub.received.size() == peers);
    for (const auto& got : hub.received) {
      REQUIRE(got.ok());
      const auto from = std::find_if(ends.begin(), ends.end(),
                                     [&](const auto& end) { return end->qp().qpn() == got.src_qpn; });
      REQUIRE(from != ends.end());
      const auto number = static_cast<std::size_t>(from - ends.begin());
      CHECK(hub.holds(got.wr_id * 200 + grh, 100, static_cast<unsigned>(number)));
      hub.qp().send_burst().send_to(address_of(hub, (*from)->gid, got.src_qpn),
                                    hub.sge(got.wr_id * 200 + grh, 100));
    }
    for (int i = 0; i < 100; ++i) hub.turn();
    for (std::size_t i = 0; i < peers; ++i) {
      for (int turn = 0; turn < 10; ++turn) ends[i]->turn();
      REQUIRE(ends[i]->received.size() == 1);
      CHECK(ends[i]->holds(200 + grh, 100, static_cast<unsigned>(i)));
    }
  }

  TEST_CASE("the devices of one process reach each other, by datagram and connected") {
    for (const auto transport : {driver::Transport::ud, driver::Transport::rc}) {
      QpOptions options;
      options.config.transport = transport;
      auto driver = soft::make_driver(in_process());
      auto first = driver->open("soft0");
      auto second = driver->open("soft1");
      End a(*first, options);
      End b(*second, options);
      CHECK(a.gid != b.gid);
      const bool ud = transport == driver::Transport::ud;
      if (ud) {
        a.qp().activate(options.init);
        b.qp().activate(options.init);
      } else {
        connect(a, a.qp(), b, b.qp(), options);
      }
      a.fill(0, 3000, 8);
      post(b, 0, 4000);
      if (ud)
        a.qp().send_burst().send_to(address_of(a, b.gid, b.qp().qpn()), a.sge(0, 3000));
      else
        a.qp().send_burst().send(a.sge(0, 3000));
      for (int i = 0; i < 1000 && (b.received.empty() || a.sent.empty()); ++i) {
        a.turn();
        b.turn();
      }
      REQUIRE(b.received.size() == 1);
      REQUIRE(a.sent.size() == 1);
      CHECK(b.holds(ud ? grh : 0, 3000, 8));
      if (ud) CHECK(b.memory[35] == std::byte{a.gid.bytes[15]});
    }
  }

  TEST_CASE("a receiver that does not keep up loses datagrams, but none is torn, doubled or out of order") {
    Pair pair(ud_options());
    const auto to_b = address_of(pair.a, pair.b.gid, pair.b.qp().qpn());
    std::uint64_t posted = 0;
    std::uint64_t last = 0;
    std::uint64_t got = 0;
    for (int turn = 0; turn < 3000; ++turn) {
      if (turn % 7 == 0) {
        while (pair.b.qp().post_receive(pair.b.sge(1000, 400), 0)) {
        }
        pair.b.qp().publish_receives();
      }
      for (;;) {
        std::uint64_t data[20];
        std::fill(std::begin(data), std::end(data), posted + 1);
        auto burst = pair.a.qp().send_burst();
        if (!burst.send_inline_to(to_b, std::as_bytes(std::span(data)))) break;
        ++posted;
      }
      pair.a.turn();
      pair.a.sent.clear();
      if (turn % 3 != 0) continue;
      // One at a time, as all share a buffer.
      pair.b.port->progress()();
      Completion done;
      std::uint64_t in_buffer[20];
      std::memcpy(in_buffer, pair.b.memory.data() + 1000 + grh, sizeof in_buffer);
      for (const std::uint64_t value : in_buffer) REQUIRE(value == in_buffer[0]);
      while (pair.b.recv_cq->poll(&done, 1) != 0) {
        REQUIRE(done.ok());
        REQUIRE(done.byte_len == 160 + grh);
        ++got;
      }
      REQUIRE(in_buffer[0] >= last);
      last = in_buffer[0];
    }
    CHECK(got > 0);
    CHECK(got <= posted);
    CHECK(last <= posted);
  }
}
