// A process of the same user that writes what it likes into an engine's inbox. The engine may lose
// the connections to that process, and nothing else.
#include <string>

#include "pollen/drivers/soft/directory.hpp"
#include "process_rig.hpp"
#include "raw_rig.hpp"

using namespace rig;
using driver::QpState;

namespace {

constexpr std::size_t qps = 8;
constexpr std::size_t open_bytes = 64'000;   // what the victim opens to its peers
constexpr std::size_t guard_bytes = 16'000;  // before and behind it

struct VictimInfo {
  driver::Gid gid;
  std::uint32_t qpns[qps + 1];  // the last is UD
  std::uint64_t address;
  std::uint32_t rkey;
};

// Serves until it is told to stop; broken connections are made again, with PSN 0.
int victim(const soft::SoftOptions& wire, Talk talk) {
  auto device = soft::make_driver(wire)->open("");
  QpOptions options;
  options.rts.timeout = 5;
  End end(*device, options, guard_bytes + open_bytes + guard_bytes, driver::Access::none);
  end.fill(0, guard_bytes, 1);
  end.fill(guard_bytes + open_bytes, guard_bytes, 2);
  auto window =
      end.pd->register_memory(std::span(end.memory).subspan(guard_bytes, open_bytes), driver::all_access);
  RawCq cq(end.port->create_cq(4096));
  std::vector<std::unique_ptr<RawQp>> rc;
  for (std::size_t i = 0; i < qps; ++i)
    rc.push_back(std::make_unique<RawQp>(end, cq.control(), cq.control(), options));
  QpOptions ud_options;
  ud_options.config.transport = driver::Transport::ud;
  RawQp ud(end, cq.control(), cq.control(), ud_options);

  const auto enemy = talk.receive<PeerInfo>();
  VictimInfo info{
      end.gid, {}, reinterpret_cast<std::uint64_t>(end.memory.data() + guard_bytes), window->rkey()};
  for (std::size_t i = 0; i < qps; ++i) info.qpns[i] = rc[i]->qpn();
  info.qpns[qps] = ud.qpn();

  const auto revive = [&](RawQp& qp, bool is_ud) {
    qp.reset();
    qp.control().to_init(options.init);
    driver::RtrConfig rtr = options.rtr;
    rtr.path.remote_gid = enemy.gid;
    rtr.remote_qpn = enemy.qpn;
    qp.control().to_rtr(rtr);
    qp.control().to_rts(options.rts);
    const auto local = [&](std::size_t at, std::uint32_t bytes) {
      return Sge{end.memory.data() + guard_bytes + at, bytes, window->lkey()};
    };
    for (std::size_t i = 0; i < 8; ++i) qp.post_receive(local(i * 4200, 4200));
    if (is_ud) return;
    RawWqe read(MLX5_OPCODE_RDMA_READ);
    read.remote(enemy.address, enemy.rkey).data(local(0, 5000));
    RawWqe add(MLX5_OPCODE_ATOMIC_FA);
    add.remote(enemy.address, enemy.rkey).operands(1, 0).data(local(8, 8));
    RawWqe send(MLX5_OPCODE_SEND);
    send.data(local(0, 3000));
    for (const RawWqe* wqe : {&read, &send, &add}) qp.post(*wqe);
    qp.ring();
  };
  for (auto& qp : rc) revive(*qp, false);
  revive(ud, true);
  talk.send(info);

  std::uint64_t revived = 0;
  while (!talk.pending()) {
    end.port->progress()();
    while (cq.next()) cq.acknowledge();
    while (end.port->next_event()) {
    }
    for (auto& qp : rc)
      if (qp->control().state() == QpState::error) {
        revive(*qp, false);
        ++revived;
      }
    if (ud.control().state() == QpState::error || revived % 64 == 63) revive(ud, true);
  }
  if (!end.holds(0, guard_bytes, 1) || !end.holds(guard_bytes + open_bytes, guard_bytes, 2)) return 2;
  CHILD_REQUIRE(revived > 20);
  // It still serves who behaves.
  Pair pair({}, wire);
  CHILD_REQUIRE(pair.a.qp().send_burst().write(pair.a.sge(0, 8), pair.b.remote(0)));
  CHILD_REQUIRE(pair.until([&] { return !pair.a.sent.empty(); }) && pair.a.sent[0].ok());
  return 0;
}

struct Random {
  std::uint64_t state;
  std::uint64_t operator()() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  }
  std::uint64_t below(std::uint64_t n) { return (*this)() % n; }
};

// A packet that is random, but often near enough to a good one to get past the first checks.
soft::Packet garbage(Random& random, const VictimInfo& target) {
  soft::Packet packet;
  auto* bytes = reinterpret_cast<std::byte*>(&packet);
  for (std::size_t i = 0; i < sizeof packet; ++i) bytes[i] = static_cast<std::byte>(random());
  if (random.below(8) == 0) return packet;
  if (random.below(8) != 0) packet.op = static_cast<soft::PacketOp>(random.below(0x18));
  if (random.below(10) == 0) packet.op = static_cast<soft::PacketOp>(0x64 + random.below(2));
  if (random.below(16) != 0) packet.pkey = 0xffff;
  if (random.below(8) != 0) packet.dest_qpn = target.qpns[random.below(qps + 1)];
  if (random.below(8) != 0) packet.psn = static_cast<std::uint32_t>(random.below(24)) & soft::psn_mask;
  if (random.below(16) == 0) packet.psn = 0xffffff - static_cast<std::uint32_t>(random.below(4));
  const std::uint16_t lengths[] = {0, 1, 8, 64, 65, 1023, 1024, 1025, 4096, 4097, 65535};
  if (random.below(8) != 0) packet.payload_bytes = lengths[random.below(std::size(lengths))];
  if (random.below(4) != 0) packet.rkey = random.below(4) == 0 ? 0x11111111 : target.rkey;
  if (random.below(4) != 0) packet.address = target.address + random.below(open_bytes + 5000) - 2000;
  if (random.below(2) == 0) packet.address &= ~std::uint64_t{7};
  if (random.below(2) == 0) packet.dma_bytes = static_cast<std::uint32_t>(random.below(70'000));
  if (random.below(2) == 0) packet.dma_bytes = packet.payload_bytes;
  if (random.below(4) == 0) packet.aeth = static_cast<std::uint32_t>((0x60 + random.below(5)) << 24);
  if (random.below(2) == 0) packet.flags &= 3;
  if (random.below(2) == 0) packet.run = static_cast<std::uint8_t>(random.below(3));
  if (random.below(4) == 0) packet.run = 255;
  if ((packet.flags & soft::packet_by_reference) != 0) {
    if (random.below(4) == 0) packet.reference.backing = soft::own_address_space;
    if (random.below(2) == 0) packet.reference.backing = static_cast<std::uint32_t>(random.below(64));
    if (random.below(2) == 0) packet.reference.offset = random.below(1 << 22);
  }
  return packet;
}

// As whom the lane's header says it sends.
enum class Mask { itself, victim };

void attack(Mask mask) {
  TempDir dir;
  const soft::SoftOptions wire = shared_memory(dir);
  Child child([&](Talk talk) { return victim(wire, talk); });
  auto device = soft::make_driver(wire)->open("");
  End end(*device, QpOptions{});
  // One more fd that can be mapped, for references that hit.
  memory::Arena arena({.bytes = 1 << 20, .largest = memory::PageKind::plain});
  child.talk().send(info_of(end));
  const auto target = child.talk().receive<VictimInfo>();

  soft::Directory directory(0, wire);
  auto inbox = directory.open_inbox(0, soft::engine_of_qpn(target.qpns[0]));
  REQUIRE(inbox != nullptr);
  const soft::ProcessId as = mask == Mask::itself ? soft::this_process() : inbox->owner();
  const std::uint32_t engine = soft::engine_of_qpn(end.qp().qpn());
  soft::Lane* lane = inbox->claim_lane(as, engine);
  REQUIRE(lane != nullptr);
  soft::TxLane tx(*lane);
  Random random{mask == Mask::itself ? 7U : 8U};
  std::uint64_t sent = 0;
  const auto stop = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (sent < 200'000 && std::chrono::steady_clock::now() < stop && is_alive(inbox->owner())) {
    end.port->progress()();
    for (int i = 0; i < 64 && tx.has_room(); ++i) {
      soft::Packet packet = garbage(random, target);
      if (mask == Mask::victim) {
        packet.flags |= soft::packet_by_reference;
        packet.reference = {soft::own_address_space, 0, random.below(4) == 0 ? target.address : 0x1000};
      }
      tx.slot().packet = packet;
      if (packet.payload_bytes > 0)
        for (auto& byte : std::span(tx.payload(64 + packet.payload_bytes % 2), 64))
          byte = static_cast<std::byte>(random());
      tx.commit();
      ++sent;
    }
    // The control words are not safe from it either.
    if (random.below(1000) == 0) lane->header.sender_engine = static_cast<std::uint32_t>(random());
    if (random.below(1000) == 0) lane->header.references_refused.store(static_cast<std::uint32_t>(random()));
  }
  lane->header.sender_engine = engine;
  REQUIRE(is_alive(inbox->owner()));
  CHECK(sent > 1000);
  child.talk().send(char{1});
  CHECK(child.wait(std::chrono::seconds(20), [&] { end.port->progress()(); }) == 0);
}

}  // namespace

TEST_SUITE("soft.hostile") {
  TEST_CASE("garbage in a lane breaks no more than the connections to its sender") { attack(Mask::itself); }

  TEST_CASE("a lane that claims to be the engine's own process does not make it read its own addresses") {
    attack(Mask::victim);
  }

  TEST_CASE("lane states and bits that nobody set leave the engine running") {
    TempDir dir;
    const soft::SoftOptions wire = shared_memory(dir);
    Child child([&](Talk talk) { return victim(wire, talk); });
    auto device = soft::make_driver(wire)->open("");
    End end(*device, QpOptions{});
    child.talk().send(info_of(end));
    const auto target = child.talk().receive<VictimInfo>();
    soft::Directory directory(0, wire);
    auto inbox = directory.open_inbox(0, soft::engine_of_qpn(target.qpns[0]));
    REQUIRE(inbox != nullptr);
    Random random{42};
    for (int round = 0; round < 300'000 && (round % 1000 != 0 || is_alive(inbox->owner())); ++round) {
      if (round % 256 == 0) end.port->progress()();
      soft::Inbox& memory = inbox->inbox();
      const auto i = static_cast<std::uint32_t>(random.below(soft::max_lanes));
      memory.header.lanes_in_use.store(random(), std::memory_order_relaxed);
      memory.lanes[i].header.state.store(static_cast<std::uint32_t>(random.below(5)),
                                         std::memory_order_relaxed);
      soft::Slot& slot = memory.lanes[i].slots[random.below(soft::lane_slots)];
      slot.packet = garbage(random, target);
      slot.sequence.store(static_cast<std::uint32_t>(random.below(600)), std::memory_order_release);
      memory.header.wake_fd.store(static_cast<std::int32_t>(random()), std::memory_order_relaxed);
      memory.header.sleeping.store(static_cast<std::uint32_t>(random.below(2)), std::memory_order_relaxed);
    }
    REQUIRE(is_alive(inbox->owner()));
    child.talk().send(char{1});
    const int code = child.wait(std::chrono::seconds(20), [&] { end.port->progress()(); });
    // How often its connections broke is another matter.
    CHECK_MESSAGE((code == 0 || code == 1), "it ended with ", code);
  }
}
