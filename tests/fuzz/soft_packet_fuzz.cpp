// Any bytes as packets in an engine's lane: nothing outside the regions is touched, nothing crashes, and
// no turn runs for ever. Build with -fsanitize=fuzzer,address,undefined.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "pollen/base/bytes.hpp"
#include "pollen/drivers/soft/directory.hpp"
#include "pollen/drivers/soft/engine.hpp"
#include "pollen/queue/doorbell.hpp"
#include "pollen/queue/recv_queue.hpp"

using namespace pollen;
using namespace pollen::soft;

namespace {

constexpr std::uint32_t pd = 1;
constexpr std::size_t guard_bytes = 8192;
constexpr std::size_t open_bytes = 16384;

void require(bool condition) {
  if (!condition) std::abort();
}

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::size_t left() const { return size_; }
  std::uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  template <typename T>
  T value() {
    T out{};
    const std::size_t bytes = std::min(sizeof out, size_);
    std::memcpy(&out, data_, bytes);
    data_ += bytes;
    size_ -= bytes;
    return out;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

SoftOptions in_process() {
  SoftOptions options;
  options.wire = Wire::in_process;
  return options;
}

// One engine with an RC and a UD QP; its peer is the fuzzer, who has an inbox and a lane, and no engine.
struct Victim {
  Victim()
      : directory(0, in_process()),
        engine(directory, regions, std::make_unique<Tap>(FaultConfig{}, nullptr), false),
        peer(directory.take_slot()),
        memory(2 * guard_bytes + open_bytes),
        cq(1024) {
    std::memset(memory.data(), 0x5a, memory.size());
    key = regions.add(pd, std::span(memory).subspan(guard_bytes, open_bytes), driver::all_access, {});
    rc = std::make_unique<SoftQp>(engine, pd, cq, cq, driver::QpConfig{.send_wrs = 16, .recv_wrs = 16});
    ud = std::make_unique<SoftQp>(
        engine, pd, cq, cq,
        driver::QpConfig{.transport = driver::Transport::ud, .send_wrs = 16, .recv_wrs = 16});
    for (SoftQp* qp : {rc.get(), ud.get()}) {
      qp->to_init({.remote_access = driver::all_access, .qkey = 5});
      driver::RtrConfig rtr{.path = {}, .remote_qpn = peer.slot * qps_per_engine + 2, .mtu_bytes = 256};
      rtr.path.remote_gid = device_gid(0, 1);
      qp->to_rtr(rtr);
      qp->to_rts({.timeout = 1});
    }
    auto inbox = directory.open_inbox(0, engine_of_qpn(rc->qpn()));
    require(inbox != nullptr);
    lane = inbox->claim_lane({1, 1}, peer.slot);
    require(lane != nullptr);
    tx = std::make_unique<TxLane>(*lane);
  }
  ~Victim() {
    rc.reset();
    ud.reset();
    directory.give_back(peer.slot);
  }

  std::uint64_t base() { return reinterpret_cast<std::uint64_t>(memory.data()) + guard_bytes; }

  void post_receive(SoftQp& qp, std::uint32_t bytes) {
    const queue::RecvRing& ring = qp.recv_ring();
    if (qp.receives() == ring.entries) return;
    std::uint32_t& count = received[&qp == ud.get()];
    queue::put_receive_segment(ring.wqes + count % ring.entries * ring.stride_bytes, bytes, key,
                               memory.data() + guard_bytes);
    queue::store_record(ring.record, ++count & 0xffff);
  }
  void post_send(std::uint8_t opcode, std::uint32_t bytes) {
    const queue::SendRing& ring = rc->send_ring();
    if (posted - rc->requester.head >= ring.blocks || rc->requester.doorbell != posted ||
        posted - rc->requester.next_block != 0)
      return;
    std::byte* wqe = ring.wqes + posted % ring.blocks * queue::block_bytes;
    std::memset(wqe, 0, queue::block_bytes);
    const bool atomic = opcode == MLX5_OPCODE_ATOMIC_FA;
    const bool remote = opcode != MLX5_OPCODE_SEND;
    const std::uint32_t segments = atomic ? 4 : remote ? 3 : 2;
    queue::store_be(wqe, (posted & 0xffff) << 8 | opcode);
    queue::store_be(wqe + 4, ring.qpn << 8 | segments);
    wqe[11] = std::byte{queue::ctrl_signal};
    queue::put_receive_segment(wqe + (segments - 1) * queue::segment_bytes, atomic ? 8 : bytes, key,
                               memory.data() + guard_bytes);
    queue::store_record(ring.record, ++posted & 0xffff);
    ring.hook.function(ring.hook.context, nullptr);
  }

  Directory directory;
  RegionTable regions;
  Engine engine;
  Directory::Place peer;
  std::vector<std::byte> memory;
  std::uint32_t key = 0;
  SoftCq cq;
  std::unique_ptr<SoftQp> rc;
  std::unique_ptr<SoftQp> ud;
  Lane* lane = nullptr;
  std::unique_ptr<TxLane> tx;
  std::uint32_t received[2] = {};
  std::uint32_t posted = 0;
};

void send_packet(Victim& victim, Input& input) {
  if (!victim.tx->has_room()) return;
  Packet packet = input.value<Packet>();
  const std::uint8_t steer = input.byte();
  // What a fuzzer would have to guess, unless it had rather not.
  SoftQp& to = (steer & 1) != 0 ? *victim.ud : *victim.rc;
  if ((steer & 2) == 0) packet.dest_qpn = to.qpn();
  if ((steer & 4) == 0) packet.pkey = default_pkey;
  const std::uint32_t near =
      packet.op >= PacketOp::read_response_first && packet.op <= PacketOp::atomic_acknowledge
          ? to.requester.una_psn
          : to.responder.expected_psn;
  if ((steer & 8) == 0) packet.psn = (near + (packet.psn & 0xff) % 5 - 2) & psn_mask;
  if ((steer & 16) == 0) packet.rkey = &to == victim.ud.get() ? 5 : victim.key;
  if ((steer & 32) == 0) packet.address = victim.base() + packet.address % (open_bytes + 512) - 256;
  if ((steer & 64) == 0)
    packet.payload_bytes =
        static_cast<std::uint16_t>(packet.payload_bytes % 4 == 0 ? 256 : packet.payload_bytes % 300);
  if ((steer & 128) == 0) packet.dma_bytes %= open_bytes + 512;
  victim.tx->slot().packet = packet;
  std::memset(victim.tx->payload(packet.payload_bytes), steer,
              packet.payload_bytes <= 64 ? 64 : max_mtu_bytes);
  victim.tx->commit();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Victim victim;
  Input input(data, size);
  RxLane* answers = nullptr;
  std::unique_ptr<RxLane> reader;
  static constexpr std::uint8_t opcodes[] = {MLX5_OPCODE_SEND, MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_RDMA_READ,
                                             MLX5_OPCODE_ATOMIC_FA};
  while (input.left() != 0) {
    const std::uint8_t what = input.byte();
    switch (what % 8) {
      case 0:
        victim.post_receive(*victim.rc, what * 8U);
        break;
      case 1:
        victim.post_receive(*victim.ud, what * 8U);
        break;
      case 2:
        victim.post_send(opcodes[what / 8 % 4], what * 16U);
        break;
      default:
        send_packet(victim, input);
        break;
    }
    victim.engine.progress();
    // The peer reads what is sent to it, and believes none of it.
    if (answers == nullptr && victim.peer.inbox->inbox().header.lanes_in_use.load() != 0) {
      reader = std::make_unique<RxLane>(victim.peer.inbox->inbox().lanes[0]);
      answers = reader.get();
    }
    if (answers != nullptr) {
      while (answers->peek() != nullptr) answers->advance();
      answers->publish();
    }
    if (victim.rc->state() == driver::QpState::error) break;
  }
  for (int i = 0; i < 20; ++i) victim.engine.progress();
  for (std::size_t i = 0; i < guard_bytes; ++i)
    require(victim.memory[i] == std::byte{0x5a} &&
            victim.memory[guard_bytes + open_bytes + i] == std::byte{0x5a});
  return 0;
}
