#include "pollen/queue/qp.hpp"

#include <doctest/doctest.h>

#include <chrono>

#include "fake_device.hpp"

using namespace pollen;
using queue::Completion;
using queue::CompletionQueue;
using queue::Opcode;
using queue::Status;

namespace {

struct Ends {
  explicit Ends(bool one_cq = false)
      : pd(device.create_pd()),
        port(device.open_port(1)),
        send_cq(port->create_cq(32)),
        recv_cq(port->create_cq(32)),
        sends(send_cq->ring()),
        recvs(recv_cq->ring()),
        shared(one_cq) {}

  std::unique_ptr<queue::Qp> make() {
    driver::Cq& second = shared ? *send_cq : *recv_cq;
    return std::make_unique<queue::Qp>(
        port->create_qp(*pd, *send_cq, second, {.send_wrs = 16, .recv_wrs = 16}), sends,
        shared ? sends : recvs, driver::Transport::rc, 4);
  }
  fake::Qp& control(queue::Qp& qp) { return dynamic_cast<fake::Qp&>(qp.control()); }

  fake::Device device;
  std::unique_ptr<driver::Pd> pd;
  std::unique_ptr<driver::Port> port;
  std::unique_ptr<driver::Cq> send_cq;
  std::unique_ptr<driver::Cq> recv_cq;
  CompletionQueue sends;
  CompletionQueue recvs;
  bool shared;
};

std::byte buffer[64];

void post(queue::Qp& qp, int count) {
  auto burst = qp.send_burst();
  for (int i = 0; i < count; ++i) REQUIRE(burst.nop({.wr_id = static_cast<std::uint64_t>(i)}));
}

}  // namespace

TEST_SUITE("queue.qp") {
  TEST_CASE("connect() takes the QP to RTS, and so does activate()") {
    Ends ends;
    auto connected = ends.make();
    connected->connect({}, {}, {});
    CHECK(connected->control().state() == driver::QpState::rts);
    auto datagrams = ends.make();
    datagrams->activate({});
    CHECK(datagrams->control().state() == driver::QpState::rts);
    CHECK(connected->qpn() != datagrams->qpn());
  }

  TEST_CASE("close() flushes what is posted and gives all slots back, on one completion queue or two") {
    for (const bool one_cq : {false, true}) {
      Ends ends(one_cq);
      auto qp = ends.make();
      qp->connect({}, {}, {});
      ends.device.behaviour.hold = true;
      post(*qp, 7);
      for (int i = 0; i < 5; ++i) REQUIRE(qp->post_receive({buffer, 64, 1}));
      qp->publish_receives();
      CHECK(qp->close());
      CHECK(qp->control().state() == driver::QpState::error);
      CHECK(qp->sq().outstanding() == 0);
      CHECK(qp->rq().outstanding() == 0);
      CHECK(ends.sends.free_slots() == 32);
      CHECK(ends.recvs.free_slots() == 32);
      Completion out[4];
      CHECK(ends.sends.poll(out, 4) == 0);
      CHECK(ends.recvs.poll(out, 4) == 0);
      CHECK(qp->close());  // again: nothing to do
    }
  }

  TEST_CASE("close() leaves the completions of other QPs to poll()") {
    Ends ends(true);
    auto goes = ends.make();
    auto stays = ends.make();
    goes->connect({}, {}, {});
    stays->connect({}, {}, {});
    post(*stays, 1);
    post(*goes, 3);
    post(*stays, 4);
    CHECK(goes->close());
    std::uint32_t retired = 0;
    Completion out[8];
    while (const std::uint32_t count = ends.sends.poll(out, 8))
      for (std::uint32_t i = 0; i < count; ++i) {
        CHECK(out[i].qpn == stays->qpn());
        CHECK(out[i].ok());
        retired += out[i].wr_count;
      }
    CHECK(retired == 5);
  }

  TEST_CASE(
      "a device that never finishes is waited for until the time limit, and the slots come back all the "
      "same") {
    Ends ends;
    auto qp = ends.make();
    qp->connect({}, {}, {});
    ends.device.behaviour.hold = true;
    ends.device.behaviour.dead = true;
    post(*qp, 3);
    REQUIRE(qp->post_receive({buffer, 64, 1}));
    qp->publish_receives();
    std::uint32_t calls = 0;
    const driver::Progress progress{
        .function = [](void* context) noexcept { return ++*static_cast<std::uint32_t*>(context) != 0; },
        .context = &calls};
    CHECK_FALSE(qp->close(progress, 2'000'000));
    CHECK(calls > 0);
    CHECK(ends.sends.free_slots() == 32);
    CHECK(ends.recvs.free_slots() == 32);
    CHECK(qp->close(progress, 2'000'000));  // once is enough
  }

  TEST_CASE("close() runs the device's progress until the flush is through") {
    Ends ends;
    auto qp = ends.make();
    qp->connect({}, {}, {});
    ends.device.behaviour.hold = true;
    ends.device.behaviour.dead = true;
    post(*qp, 3);
    struct Slow {
      fake::Qp& qp;
      int turns = 0;
    } slow{ends.control(*qp)};
    const driver::Progress progress{.function =
                                        [](void* context) noexcept {
                                          auto& self = *static_cast<Slow*>(context);
                                          if (++self.turns == 5) self.qp.fail(MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
                                          return true;
                                        },
                                    .context = &slow};
    CHECK(qp->close(progress));
    CHECK(slow.turns == 5);
    CHECK(ends.sends.free_slots() == 32);
  }

  TEST_CASE("a QP that goes out of scope closes itself") {
    Ends ends(true);
    {
      auto qp = ends.make();
      qp->connect({}, {}, {});
      ends.device.behaviour.hold = true;
      post(*qp, 4);
      CHECK(ends.sends.free_slots() == 32 - 1 - 4);
    }
    CHECK(ends.sends.free_slots() == 32);
  }
}
