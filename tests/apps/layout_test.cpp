#include "layout.hpp"

#include <doctest/doctest.h>

using namespace pollen::bw;

namespace {

constexpr Activity client{.active = true, .passive = false};
constexpr Activity server{.active = false, .passive = true};

}  // namespace

TEST_CASE("Without validation a page of slots is used over and over") {
  TestParameters test;
  test.op = Op::send;
  CHECK(make_layout(test, 64, client).send_slots == 64);
  CHECK(make_layout(test, 64, client).recv_slots == 0);
  CHECK(make_layout(test, 65536, client).send_slots == 1);
  CHECK(make_layout(test, 64, server).rx_depth == 512);
}

TEST_CASE("Only operations that tell the receiver take receives") {
  TestParameters test;
  for (const Op op : {Op::write, Op::read}) {
    test.op = op;
    CHECK(make_layout(test, 64, server).rx_depth == 0);
  }
  test.op = Op::write_imm;
  CHECK(make_layout(test, 64, server).rx_depth == 512);
}

TEST_CASE("A READ needs memory where it comes from on the passive side and where it goes on the active one") {
  TestParameters test;
  test.op = Op::read;
  CHECK(make_layout(test, 64, client).send_slots == 0);
  CHECK(make_layout(test, 64, client).recv_slots != 0);
  CHECK(make_layout(test, 64, server).send_slots != 0);
  CHECK(make_layout(test, 64, server).recv_slots == 0);
}

TEST_CASE("With validation every message under way has a slot") {
  TestParameters test;
  test.validate = true;
  for (const Op op : {Op::send, Op::write, Op::write_imm}) {
    test.op = op;
    CHECK(make_layout(test, 64, client).send_slots == 128);
  }
  test.op = Op::send;
  CHECK(make_layout(test, 64, server).recv_slots == 512);
  test.op = Op::write_imm;
  CHECK(make_layout(test, 64, server).recv_slots == 1024);
  test.op = Op::read;
  CHECK(make_layout(test, 64, client).recv_slots == 128);
  CHECK(make_layout(test, 64, server).send_slots == 129);
}

TEST_CASE("Validation of large messages has smaller depths, not more memory") {
  TestParameters test;
  test.validate = true;
  for (const Op op : {Op::send, Op::write, Op::write_imm, Op::read})
    for (const Activity activity : {client, server, Activity{.active = true, .passive = true}}) {
      test.op = op;
      const Layout layout = make_layout(test, std::uint64_t{8} << 20, activity);
      CHECK(layout.send_bytes() + layout.recv_bytes() <= validation_bytes + trailer_bytes);
      CHECK(layout.tx_depth >= 1);
      CHECK(layout.tx_depth <= 128);
    }
}

TEST_CASE("A datagram's slot has room for the header before it") {
  TestParameters test;
  test.op = Op::send;
  test.transport = pollen::driver::Transport::ud;
  CHECK(make_layout(test, 64, server).stride_bytes >= 64 + grh_bytes);
}
