#include "pollen/worker/worker.hpp"

#include <doctest/doctest.h>

#include <array>
#include <memory>

#include "small_worker.hpp"

using namespace pollen::worker;
using pollen::queue::Completion;

TEST_SUITE("worker.worker") {
  TEST_CASE("a worker on the heap has pages of its own") {
    pollen::fake::Device device;
    const auto worker = std::make_unique<Worker>(device, small_worker());
    CHECK(reinterpret_cast<std::uintptr_t>(worker.get()) % 4096 == 0);
    CHECK(worker->region().address() == worker->arena().base());
    CHECK(worker->region().bytes() == worker->arena().size_bytes());
  }

  TEST_CASE("completion queues are cut to the device's limit, and the notes give asked and given") {
    pollen::fake::Device device;
    device.device_limits.max_cq_entries = 128;
    Worker worker(device, small_worker());
    CHECK(worker.send_cq().entries() == 128);
    bool said = false;
    for (const std::string& note : worker.notes())
      said = said || note == "send completion queue: asked for 256 entries, given 128, the limit of fake0";
    CHECK(said);
  }

  TEST_CASE("a QP is cut to the device's limits, and each cut is noted once") {
    pollen::fake::Device device;
    Worker worker(device, small_worker());
    const std::size_t before = worker.notes().size();
    Qp& qp = worker.create_qp({.send_wrs = 4, .recv_wrs = 4, .inline_bytes = 1000});
    worker.create_qp({.send_wrs = 4, .recv_wrs = 4, .inline_bytes = 1000});
    CHECK(qp.sq().ring().max_inline_bytes == 220);
    REQUIRE(worker.notes().size() == before + 1);
    CHECK(worker.notes().back() == "QP: asked for 1000 inline bytes, given 220, the limit of fake0");
  }

  TEST_CASE("a QP can be deferred any number of times: one doorbell and one publish per flush") {
    pollen::fake::Device device;
    Worker worker(device, small_worker());
    Qp& one = worker.create_qp({});
    Qp& two = worker.create_qp({});
    for (int i = 0; i < 3; ++i) {
      CHECK(stage(worker, one));
      worker.defer(one);
    }
    CHECK(stage(worker, two));
    CHECK(two.post_receive(sge(worker)));
    worker.defer(two);
    CHECK(fake_qp(one).doorbells() == 0);
    CHECK_FALSE(fake_qp(two).receive(64, 0));
    worker.flush();
    CHECK(fake_qp(one).doorbells() == 1);
    CHECK(fake_qp(two).doorbells() == 1);
    CHECK(fake_qp(two).receive(64, 0));
    worker.flush();
    CHECK(fake_qp(one).doorbells() == 1);
  }

  TEST_CASE("destroying a QP flushes what is posted and leaves the other QPs alone") {
    pollen::fake::Device device;
    device.behaviour.hold = true;
    Worker worker(device, small_worker());
    Qp& gone = worker.create_qp({});
    Qp& stays = worker.create_qp({});
    const std::uint32_t slots = worker.send_cq().free_slots();
    CHECK(stage(worker, gone));
    CHECK(gone.post_receive(sge(worker)));
    worker.defer(gone);
    CHECK(stage(worker, stays, 7));
    worker.defer(stays);
    CHECK(worker.in_flight() == 2);
    CHECK(worker.destroy_qp(gone));
    CHECK(worker.qp_count() == 1);
    CHECK(worker.in_flight() == 1);
    CHECK(worker.send_cq().free_slots() == slots);  // one more charged, one reserve given back
    worker.flush();
    fake_qp(stays).complete();
    const auto sent = worker.take_sent();
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].wr_id == 7);
    CHECK(sent[0].ok());
    CHECK(worker.take_received().empty());
  }

  TEST_CASE("a QP that the device does not flush in time is reported, not waited for") {
    pollen::fake::Device device;
    Worker worker(device, small_worker());
    Qp& qp = worker.create_qp({});
    const std::uint32_t slots = worker.send_cq().free_slots();
    CHECK(stage(worker, qp));
    device.behaviour.hold = true;
    device.behaviour.dead = true;
    CHECK_FALSE(worker.destroy_qp(qp, 1'000'000));
    CHECK(worker.send_cq().free_slots() == slots + 1);
    CHECK(worker.qp_count() == 0);
  }

  TEST_CASE("published counters hold requests, doorbells and bytes of living and former QPs") {
    pollen::fake::Device device;
    Worker worker(device, small_worker());
    Qp& one = worker.create_qp({});
    Qp& two = worker.create_qp({});
    CHECK(stage(worker, one));
    CHECK(stage(worker, one));
    CHECK(one.post_receive(sge(worker)));
    one.sq().ring_doorbell();
    CHECK(stage(worker, two));
    two.sq().ring_doorbell();
    worker.destroy_qp(two);
    worker.publish();
    const auto counters = worker.report().counters;
    CHECK(counters.wrs == 4);
    CHECK(counters.doorbells == 2);
    CHECK(counters.bytes_sent == 3 * 64);
  }

  TEST_CASE("timers of a worker run by its clock") {
    pollen::fake::Device device;
    Worker worker(device, small_worker());
    int runs = 0;
    const Timer soon = worker.after(0, [&] { ++runs; });
    const Timer late = worker.after(3'600'000'000'000, [&] { runs += 100; });
    worker.begin_turn(pollen::probe::now_cycles());
    CHECK(worker.run_timers() == 1);
    CHECK(runs == 1);
    CHECK(worker.now_ns() <= worker.clock_ns());
  }
}
