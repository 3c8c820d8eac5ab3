// Datagrams: the address vector of the WQE becomes the provider's address handle.
#include "verbs_rig.hpp"

using namespace verbs_rig;

namespace {

constexpr std::uint32_t grh = 40;

QpOptions ud_options() {
  QpOptions options = rc_options();
  options.config.transport = driver::Transport::ud;
  return options;
}

queue::Address address_of(End& from, const End& to, std::uint32_t qkey = 0x11111111) {
  driver::PathConfig path;
  path.remote_gid = to.gid;
  path.local_gid_index = 1;
  return from.port->create_address(*from.pd, path, to.qps.front()->qpn(), qkey);
}

}  // namespace

TEST_SUITE("verbs.ud") {
  TEST_CASE("a datagram arrives behind 40 bytes of GRH, with its sender's number and its immediate") {
    NEEDS_DEVICE();
    VerbsPair pair(ud_options());
    const auto to_b = address_of(pair.a, pair.b);
    for (const std::uint32_t bytes : {0U, 1U, 64U, 1000U, 1024U})
      for (const bool imm : {false, true}) {
        CAPTURE(bytes);
        pair.a.fill(0, bytes, bytes);
        pair.a.sent.clear();
        pair.b.received.clear();
        pair.expect(8192, bytes + grh, 7);
        pair.b.turn();
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

  TEST_CASE("inline datagrams and gather lists arrive at every place in the ring") {
    NEEDS_DEVICE();
    QpOptions options = ud_options();
    options.config.send_wrs = 4;
    VerbsPair pair(options);
    const auto to_b = address_of(pair.a, pair.b);
    std::size_t count = 0;
    for (std::uint32_t bytes = 0; bytes <= 220; bytes += 5) {
      pair.a.fill(0, bytes, bytes);
      pair.expect(8192, 2048);
      pair.expect(16384, 2048);
      pair.b.turn();
      const Sge pieces[2] = {pair.a.sge(0, bytes / 2), pair.a.sge(bytes / 2, bytes - bytes / 2)};
      {
        auto burst = pair.a.qp().send_burst();
        REQUIRE(burst.send_inline_to(to_b, std::span<const std::byte>(pair.a.memory.data(), bytes)));
        REQUIRE(burst.send_to(to_b, std::span<const Sge>(pieces)));
      }
      count += 2;
      REQUIRE(pair.until([&] { return pair.a.sent.size() == count && pair.b.received.size() == count; }));
      REQUIRE(pair.b.holds(8192 + grh, bytes, bytes));
      REQUIRE(pair.b.holds(16384 + grh, bytes, bytes));
    }
  }

  TEST_CASE("an address serves many sends and several QPs, and one made of bytes alone serves too") {
    NEEDS_DEVICE();
    VerbsPair pair(ud_options());
    VerbsPair other(ud_options());
    // The segment is all there is to an address: a port that did not make it can use it.
    const auto to_b = address_of(other.a, pair.b);
    for (std::size_t i = 1; i <= 40; ++i) {
      pair.expect(0, 256);
      pair.b.turn();
      pair.a.qp().send_burst().send_to(to_b, pair.a.sge(0, 64));
      REQUIRE(pair.until([&] { return pair.b.received.size() == i; }));
    }
  }

  TEST_CASE("a datagram longer than the MTU and one with a wrong operation fail on the sender's side") {
    NEEDS_DEVICE();
    for (const bool too_long : {true, false}) {
      VerbsPair pair(ud_options());
      const auto to_b = address_of(pair.a, pair.b);
      {
        auto burst = pair.a.qp().send_burst();
        REQUIRE(burst.send_to(to_b, pair.a.sge(0, 64), {.wr_id = 1}));
        if (too_long)
          REQUIRE(burst.send_to(to_b, pair.a.sge(0, device()->query_port().mtu_bytes + 1), {.wr_id = 2}));
        else
          REQUIRE(burst.read(pair.a.sge(0, 64), pair.b.remote(0), {.wr_id = 2}));
      }
      REQUIRE(pair.sent(2));
      CHECK(pair.a.sent[0].ok());
      CHECK(pair.a.sent[1].wr_id == 2);
      CHECK(pair.a.sent[1].status ==
            (too_long ? Status::local_length_error : Status::local_qp_operation_error));
    }
  }
}
