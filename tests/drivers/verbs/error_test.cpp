// What fails, fails as on an mlx5 device: a CQE for every request, in order, and the reason in words.
#include <sys/mman.h>

#include "pollen/queue/format.hpp"
#include "verbs_rig.hpp"

using namespace verbs_rig;

namespace {

// The sentence that `call` throws.
template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    MESSAGE(std::string(error.what()));
    return error.what();
  }
  return {};
}

bool mentions(const std::string& sentence, std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (sentence.find(word) == std::string::npos) return false;
  return true;
}

// Hardware and rxe disagree on some: the status that the specification has, and rxe's.
bool either(Status status, Status specified, Status of_rxe) {
  return status == specified || status == of_rxe;
}

std::vector<Status> statuses(const std::vector<Completion>& completions) {
  std::vector<Status> out;
  for (const Completion& one : completions) out.push_back(one.status);
  return out;
}

}  // namespace

TEST_SUITE("verbs.errors") {
  TEST_CASE("after a wrong rkey the request fails and those behind it are flushed in order") {
    NEEDS_DEVICE();
    VerbsPair pair;
    {
      auto burst = pair.a.qp().send_burst();
      burst.write(pair.a.sge(0, 64), pair.b.remote(0), {.wr_id = 0});
      burst.write(pair.a.sge(0, 64), {pair.b.remote(0).address, pair.b.remote(0).rkey ^ 0xff00},
                  {.wr_id = 1});
      for (std::uint64_t i = 2; i < 6; ++i) burst.write(pair.a.sge(0, 64), pair.b.remote(0), {.wr_id = i});
    }
    REQUIRE(pair.sent(6));
    for (std::size_t i = 0; i < 6; ++i) CHECK(pair.a.sent[i].wr_id == i);
    CHECK(statuses(pair.a.sent) == std::vector<Status>{Status::success, Status::remote_access_error,
                                                       Status::flushed, Status::flushed, Status::flushed,
                                                       Status::flushed});
    CHECK(pair.a.qp().control().state() == driver::QpState::error);
    CHECK(pair.a.qp().sq().failed());
  }

  TEST_CASE("unsignalled requests behind a failed one are flushed with a completion each") {
    NEEDS_DEVICE();
    QpOptions options = rc_options();
    options.signal_every = 32;
    VerbsPair pair(options);
    {
      auto burst = pair.a.qp().send_burst();
      for (std::uint64_t i = 0; i < 3; ++i) burst.write(pair.a.sge(0, 64), pair.b.remote(0), {.wr_id = i});
      burst.write(pair.a.sge(0, 64), {pair.b.remote(0).address, 0}, {.wr_id = 3});
      for (std::uint64_t i = 4; i < 8; ++i) burst.write(pair.a.sge(0, 64), pair.b.remote(0), {.wr_id = i});
    }
    REQUIRE(pair.until([&] { return pair.a.qp().sq().outstanding() == 0; }));
    REQUIRE(pair.a.sent.size() == 5);
    CHECK(pair.a.sent[0].wr_id == 3);
    CHECK(pair.a.sent[0].wr_count == 4);
    CHECK(pair.a.sent[0].status == Status::remote_access_error);
    for (std::size_t i = 1; i < 5; ++i) CHECK(pair.a.sent[i].status == Status::flushed);
  }

  TEST_CASE("a wrong lkey is a local protection error") {
    NEEDS_DEVICE();
    VerbsPair pair;
    Sge sge = pair.a.sge(0, 64);
    sge.lkey ^= 0xff00;
    pair.a.qp().send_burst().write(sge, pair.b.remote(0), {.wr_id = 9});
    REQUIRE(pair.sent(1));
    CHECK(either(pair.a.sent[0].status, Status::local_protection_error, Status::local_qp_operation_error));
    CHECK(pair.a.sent[0].wr_id == 9);
  }

  TEST_CASE("a message longer than the receive buffer fails on both sides") {
    NEEDS_DEVICE();
    VerbsPair pair;
    pair.expect(0, 16, 4);
    pair.a.qp().send_burst().send(pair.a.sge(0, 64));
    REQUIRE(pair.until([&] { return !pair.a.sent.empty() && !pair.b.received.empty(); }));
    CHECK(either(pair.a.sent[0].status, Status::remote_invalid_request, Status::remote_operation_error));
    CHECK(either(pair.b.received[0].status, Status::local_length_error, Status::local_qp_operation_error));
    CHECK(pair.b.received[0].opcode == Opcode::recv_error);
    CHECK(pair.b.received[0].wr_id == 4);
  }

  TEST_CASE("without a receive the sender waits and goes on, or fails when its retries are spent") {
    NEEDS_DEVICE();
    VerbsPair patient;
    patient.a.qp().send_burst().send(patient.a.sge(0, 64));
    CHECK_FALSE(patient.until([&] { return !patient.a.sent.empty(); }, std::chrono::milliseconds(200)));
    patient.expect(4096, 64);
    REQUIRE(patient.until([&] { return !patient.a.sent.empty() && !patient.b.received.empty(); }));
    CHECK(patient.a.sent[0].ok());

    QpOptions options = rc_options();
    options.rts.rnr_retry = 1;
    VerbsPair hasty(options);
    {
      auto burst = hasty.a.qp().send_burst();
      for (std::uint64_t i = 0; i < 3; ++i) burst.send(hasty.a.sge(0, 64), {.wr_id = i});
    }
    REQUIRE(hasty.sent(3));
    CHECK(statuses(hasty.a.sent) ==
          std::vector<Status>{Status::rnr_retry_exceeded, Status::flushed, Status::flushed});
  }

  TEST_CASE("a peer that is gone is a retry count exceeded, whose words say so") {
    NEEDS_DEVICE();
    QpOptions options = rc_options();
    options.rts.timeout = 12;
    options.rts.retry_count = 1;
    VerbsPair pair(options);
    pair.b.qps.front()->close(pair.b.port->progress());
    pair.b.qps.clear();
    pair.a.qp().send_burst().write(pair.a.sge(0, 64), pair.b.remote(0));
    REQUIRE(pair.until([&] { return !pair.a.sent.empty(); }));
    CHECK(pair.a.sent[0].status == Status::retry_exceeded);
    CHECK(mentions(describe(pair.a.sent[0]), {"does not answer"}));
  }

  TEST_CASE("a QP that is forced to the error state flushes every send and every receive, posted or not") {
    NEEDS_DEVICE();
    VerbsPair pair;
    for (std::uint64_t i = 0; i < 5; ++i) pair.a.qp().post_receive(pair.a.sge(0, 64), i);
    pair.a.qp().publish_receives();
    pair.a.turn();
    {
      auto burst = pair.a.qp().send_burst();  // the peer has no buffers: they wait
      for (std::uint64_t i = 0; i < 5; ++i) burst.send(pair.a.sge(0, 64), {.wr_id = i});
    }
    pair.a.qp().control().to_error();
    {
      auto burst = pair.a.qp().send_burst();
      for (std::uint64_t i = 5; i < 8; ++i) burst.send(pair.a.sge(0, 64), {.wr_id = i});
    }
    for (std::uint64_t i = 5; i < 8; ++i) pair.a.qp().post_receive(pair.a.sge(0, 64), i);
    pair.a.qp().publish_receives();
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 8 && pair.a.received.size() == 8; }));
    for (std::size_t i = 0; i < 8; ++i) {
      CHECK(pair.a.sent[i].status == Status::flushed);
      CHECK(pair.a.sent[i].wr_id == i);
      CHECK(pair.a.received[i].status == Status::flushed);
      CHECK(pair.a.received[i].wr_id == i);
    }
    CHECK(pair.a.qp().close(pair.a.port->progress()));
  }

  TEST_CASE("a malformed WQE fails in its turn: what is before it succeeds, what is behind it is flushed") {
    NEEDS_DEVICE();
    VerbsPair pair;
    {
      auto burst = pair.a.qp().send_burst();
      for (std::uint64_t i = 0; i < 4; ++i) burst.write(pair.a.sge(0, 64), pair.b.remote(0), {.wr_id = i});
      // The third one's opcode becomes one that does not exist.
      auto* wqe =
          reinterpret_cast<queue::CtrlSegment*>(pair.a.qp().sq().ring().wqes + 2 * queue::block_bytes);
      wqe->opmod_idx_opcode = big_endian((big_endian(wqe->opmod_idx_opcode) & ~0xffU) | 0x7fU);
    }
    REQUIRE(pair.sent(4));
    CHECK(statuses(pair.a.sent) == std::vector<Status>{Status::success, Status::success,
                                                       Status::local_qp_operation_error, Status::flushed});
    CHECK(pair.a.qp().control().state() == driver::QpState::error);
  }

  TEST_CASE("an atomic that is not of 8 bytes fails, and so does a gather list beyond the QP's") {
    NEEDS_DEVICE();
    VerbsPair pair;
    pair.a.qp().send_burst().fetch_add(pair.a.sge(0, 4), pair.b.remote(0), 1);
    REQUIRE(pair.sent(1));
    CHECK(pair.a.sent[0].status == Status::local_qp_operation_error);
  }

  TEST_CASE("a completion queue that overruns breaks its QPs, and an event says so") {
    NEEDS_DEVICE();
    QpOptions options = rc_options();
    options.cq_entries = 8;
    VerbsPair pair(options);
    // A second view of the same ring knows nothing of the first one's requests.
    queue::CompletionQueue blind(pair.a.send_cq_driver->ring());
    queue::Qp other(
        pair.a.port->create_qp(*pair.a.pd, *pair.a.send_cq_driver, *pair.a.recv_cq_driver, options.config),
        blind, *pair.a.recv_cq, driver::Transport::rc, 1);
    queue::Qp& peer = pair.b.add_qp(options);
    connect(pair.a, other, pair.b, peer, options);
    for (queue::Qp* qp : {&pair.a.qp(), &other}) {
      auto burst = qp->send_burst();
      while (burst.write(pair.a.sge(0, 8), pair.b.remote(0))) {
      }
    }
    std::optional<driver::Event> event;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!event && std::chrono::steady_clock::now() < end) {
      pair.a.port->progress()();
      event = pair.a.port->next_event();
    }
    REQUIRE(event);
    MESSAGE(event->text);
    CHECK(event->kind == driver::Event::Kind::cq_overrun);
    CHECK(other.control().state() == driver::QpState::error);
  }

  TEST_CASE("a peer that touches what it may not puts the QP into error, and its receives are flushed") {
    NEEDS_DEVICE();
    VerbsPair pair;
    for (std::uint64_t i = 0; i < 3; ++i) pair.expect(0, 64, i);
    pair.b.turn();
    pair.a.qp().send_burst().write(pair.a.sge(0, 64), {pair.b.remote(0).address, 0});
    REQUIRE(pair.until([&] { return !pair.a.sent.empty() && pair.b.received.size() == 3; }));
    for (const auto& done : pair.b.received) CHECK(done.status == Status::flushed);
    CHECK(pair.b.qp().control().state() == driver::QpState::error);
  }

  TEST_CASE("what is beyond the device is refused with the limit's name and value") {
    NEEDS_DEVICE();
    End end(*device(), rc_options());
    const auto& limits = device()->limits();
    const auto create = [&](auto change) {
      driver::QpConfig config = rc_options().config;
      change(config);
      return error_of(
          [&] { end.port->create_qp(*end.pd, *end.send_cq_driver, *end.recv_cq_driver, config); });
    };
    CHECK(mentions(create([&](auto& c) { c.send_wrs = limits.max_send_wrs + 1; }),
                   {"send queue", std::to_string(limits.max_send_wrs).c_str()}));
    CHECK(mentions(create([&](auto& c) { c.recv_wrs = limits.max_recv_wrs + 1; }), {"receive queue"}));
    CHECK(mentions(create([&](auto& c) { c.send_sge = limits.max_sge + 1; }), {"gather list"}));
    CHECK(mentions(create([&](auto& c) { c.inline_bytes = 829; }), {"inline data", "828"}));
    CHECK(mentions(error_of([&] { end.port->create_cq(limits.max_cq_entries + 1); }), {"completion queue"}));
    CHECK(mentions(error_of([&] { device()->query_port(9); }), {"port 9"}));
    CHECK(mentions(error_of([&] { verbs::make_driver()->open("nosuch0"); }),
                   {"nosuch0", device()->info().name.c_str()}));
  }

  TEST_CASE("a path that can't be is refused when the QP is connected") {
    NEEDS_DEVICE();
    const auto connecting = [](auto change) {
      End end(*device(), rc_options());
      QpOptions options = rc_options();
      options.rtr.path.remote_gid = end.gid;
      options.rtr.path.local_gid_index = 1;
      options.rtr.remote_qpn = end.qp().qpn();
      change(options);
      return error_of([&] { end.qp().connect(options.init, options.rtr, options.rts); });
    };
    CHECK(mentions(connecting([](auto& o) { o.rtr.mtu_bytes = 1000; }), {"1000", "does not exist"}));
    CHECK(mentions(connecting([](auto& o) { o.rtr.path.local_gid_index = 200; }), {"GID"}));
    CHECK(mentions(connecting([](auto& o) { o.rtr.reads_in = 255; }), {"READs"}));
    CHECK(mentions(connecting([](auto& o) { o.rtr.remote_qpn = 1U << 24; }), {"24 bits"}));
  }

  TEST_CASE("memory that is not there, or may not be written, is refused in words") {
    NEEDS_DEVICE();
    auto pd = device()->create_pd();
    void* const page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(page != MAP_FAILED);
    ::munmap(page, 4096);
    CHECK(mentions(error_of([&] {
                     pd->register_memory({static_cast<std::byte*>(page), 4096}, driver::all_access);
                   }),
                   {"not all of it is mapped"}));
    CHECK(mentions(error_of([&] { pd->register_memory({}, driver::all_access); }), {"there is none"}));
    std::vector<std::byte> memory(64);
    CHECK(mentions(error_of([&] { pd->register_memory(memory, driver::Access::remote_write); }),
                   {"local write"}));
    CHECK(mentions(error_of([&] { pd->register_memory(memory, driver::Access::remote_invalidate); }),
                   {"memory windows"}));
  }

  TEST_CASE("a port that goes down is an event with a remedy; it does not open, and comes back") {
    NEEDS_DEVICE();
    if (!in_guest()) {
      MESSAGE("skipped: takes a network interface down, which is done in the guest only");
      return;
    }
    const auto next = [](driver::Port& port, driver::Event::Kind kind) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (std::chrono::steady_clock::now() < end)
        if (const auto event = port.next_event(); event && event->kind == kind) return event->text;
      return std::string();
    };
    // Two ports: both are told.
    auto one = device()->open_port();
    auto two = device()->open_port();
    REQUIRE(std::system("ip link set eth0 down") == 0);
    CHECK(mentions(next(*one, driver::Event::Kind::port_down), {"ip link set eth0 up"}));
    CHECK(mentions(next(*two, driver::Event::Kind::port_down), {"is down"}));
    CHECK_FALSE(device()->query_port().active);
    CHECK(mentions(error_of([] { device()->open_port(); }), {"port is down", "ip link set eth0 up"}));
    REQUIRE(std::system("ip link set eth0 up") == 0);
    CHECK(mentions(next(*one, driver::Event::Kind::port_up), {"is up"}));
    CHECK(device()->open_port() != nullptr);
  }
}
