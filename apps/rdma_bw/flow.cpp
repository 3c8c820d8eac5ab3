#include "flow.hpp"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "pattern.hpp"
#include "pollen/base/error.hpp"
#include "pollen/queue/format.hpp"

namespace pollen::bw {

namespace {

constexpr std::uint32_t qkey = 0x11111111;  // perftest's
constexpr std::uint8_t soon_rnr_timer = 1;  // 10 µs: a receiver that was late is asked again soon
constexpr std::uint32_t passive_send_wrs = 16;

std::uint32_t random_psn() {
  std::uint32_t psn = 0;
  if (::getrandom(&psn, sizeof psn, GRND_NONBLOCK) != sizeof psn) psn = 0x123456;
  return psn & 0xffffff;
}

driver::QpConfig qp_config(const RoundConfig& config, const driver::Limits& limits) {
  driver::QpConfig qp;
  qp.transport = config.test.transport;
  qp.send_wrs = passive_send_wrs;
  qp.recv_wrs = config.layout.rx_depth;
  if (config.activity.active) {
    // A queue signals each quarter of its ring at least: it has to be larger than the depth for a
    // rarer signal.
    const std::uint32_t most = limits.max_send_wrs / blocks_per_send(config.test, limits);
    qp.send_wrs = std::max(config.layout.tx_depth, std::min(4 * config.signal_every, most));
    if (config.layout.has_trailer || config.test.validate) qp.send_wrs = std::max(qp.send_wrs, 2U);
    if (config.test.op != Op::read)
      qp.inline_bytes = config.test.inline_bytes;  // the worker cuts it to the limit
  }
  return qp;
}

driver::Access remote_access(Op op) {
  if (op == Op::read) return driver::Access::remote_read;
  if (op == Op::send) return driver::Access::none;
  return driver::Access::remote_write | driver::Access::local_write;
}

std::uint64_t sender_key(const RoundConfig& config, unsigned worker, std::size_t index, net::Role role) {
  const std::uint64_t flow = worker * std::uint64_t{config.test.qps} + index;
  return 2 * flow + (role == net::Role::server ? 1 : 0);
}

// What a peer may READ.
void fill_readable(const RoundConfig& config, Flow& flow, std::span<std::byte> memory, bool first_flow) {
  const Layout& layout = config.layout;
  for (std::uint64_t slot = 0; slot < layout.send_slots; ++slot) {
    const auto message = memory.subspan(slot * layout.stride_bytes, layout.size);
    fill_pattern(message, pattern_key(flow.my_key, slot));
    if (first_flow && config.corrupt_message && *config.corrupt_message % layout.send_slots == slot)
      message[message.size() / 2] ^= std::byte{1};
  }
}

void carve(worker::Worker& worker, const RoundConfig& config, std::size_t index, Flow& flow,
           net::QpEndpoint& mine) {
  const Layout& layout = config.layout;
  const bool read = config.test.op == Op::read;
  std::span<std::byte> send, recv;
  if (layout.send_slots != 0) send = worker.arena().allocate(layout.send_bytes());
  if (layout.recv_slots != 0) recv = worker.arena().allocate(layout.recv_bytes());
  const std::span<std::byte> slots = recv.first(layout.recv_slots * layout.stride_bytes);
  flow.source.set(read ? slots : send);
  flow.receives.set(slots);
  flow.arrivals.set(slots);
  flow.check.set(slots);
  flow.written.set(slots);
  if (layout.has_trailer) flow.trailer = recv.data() + slots.size();
  if (config.test.validate && config.test.op == Op::write && config.activity.active)
    flow.trailer_source = worker.arena().allocate(trailer_bytes).data();

  flow.my_key = sender_key(config, worker.index(), index, config.role);
  flow.their_key = sender_key(config, worker.index(), index, net::other(config.role));
  if (read && config.test.validate && config.activity.passive)
    fill_readable(config, flow, send, worker.index() == 0 && index == 0);

  // READ: what the peer reads; else what it writes to.
  const std::span<std::byte> shared = read ? send : recv;
  if (config.activity.passive && config.test.op != Op::send) {
    mine.address = reinterpret_cast<std::uint64_t>(shared.data());
    mine.bytes = shared.size();
    mine.rkey = worker.region().rkey();
  }
}

net::QpEndpoint endpoint_of(worker::Worker& worker, const RoundConfig& config, const Flow& flow) {
  const driver::Limits& limits = worker.device().limits();
  net::QpEndpoint mine;
  mine.qpn = flow.qp->qpn();
  mine.psn = random_psn();
  mine.gid = config.gid.gid;
  mine.gid_type = config.gid.type;
  mine.lid = config.lid;
  mine.transport = config.test.transport;
  mine.mtu_bytes = config.mtu_bytes;
  mine.qkey = qkey;
  mine.reads_in = limits.max_reads_in;
  mine.reads_out = limits.max_reads_out;
  mine.min_rnr_timer = soon_rnr_timer;
  return mine;
}

[[noreturn]] void refuse_peer(std::string why) {
  throw Error(EPROTO, {.attempted = "connect to the peer's QP",
                       .why = std::move(why),
                       .remedy = "Use the same release on both sides"});
}

void take_remote(const RoundConfig& config, Flow& flow, const net::QpEndpoint& peer) {
  const std::size_t trailer = config.test.validate && config.test.op == Op::write ? trailer_bytes : 0;
  if (peer.bytes < trailer + config.layout.stride_bytes)
    refuse_peer(fmt::format("its {} bytes of memory hold no message of {}", peer.bytes, config.layout.size));
  const std::uint64_t slots = (peer.bytes - trailer) / config.layout.stride_bytes;
  flow.remote.begin = flow.remote.at = peer.address;
  flow.remote.end = peer.address + slots * config.layout.stride_bytes;
  flow.trailer_address = peer.address + peer.bytes - trailer;
  flow.rkey = peer.rkey;
}

void connect(worker::Worker& worker, const RoundConfig& config, Flow& flow, const net::QpEndpoint& mine,
             const net::QpEndpoint& peer) {
  if (peer.transport != config.test.transport) refuse_peer("it is of another connection type");
  const driver::PathConfig path{
      .remote_gid = peer.gid, .local_gid_index = config.gid.index, .remote_lid = peer.lid};
  if (config.test.is_ud()) {
    flow.qp->activate({.qkey = qkey});
    if (config.activity.active)
      flow.to = worker.port().create_address(worker.pd(), path, peer.qpn, peer.qkey);
    return;
  }
  const driver::InitConfig init{.remote_access = remote_access(config.test.op)};
  const driver::RtrConfig rtr{.path = path,
                              .remote_qpn = peer.qpn,
                              .remote_psn = peer.psn,
                              .mtu_bytes = net::negotiate_mtu(mine.mtu_bytes, peer.mtu_bytes),
                              .reads_in = std::min(mine.reads_in, peer.reads_out),
                              .min_rnr_timer = mine.min_rnr_timer};
  const driver::RtsConfig rts{.local_psn = mine.psn, .reads_out = std::min(mine.reads_out, peer.reads_in)};
  flow.qp->connect(init, rtr, rts);
  if (config.activity.active && config.test.op != Op::send) take_remote(config, flow, peer);
}

// With validation the peer's memory bounds what may be under way.
std::uint32_t depth_for(const RoundConfig& config, Flow& flow, std::uint32_t depth) {
  if (!config.test.validate || config.test.op == Op::send) return depth;
  const std::size_t stride_bytes = config.layout.stride_bytes;
  const std::uint64_t remote = flow.remote.slots(stride_bytes);
  if (config.test.op == Op::write_imm)
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(remote / 2, 1, depth));
  // The same place must not get the same bytes twice in a row: a READ that brought nothing would pass.
  if (config.test.op == Op::read && config.layout.recv_slots % remote == 0 && config.layout.recv_slots > 1) {
    flow.source.end = flow.check.end = flow.source.end - stride_bytes;
    return std::min(depth, config.layout.recv_slots - 1);
  }
  return depth;
}

}  // namespace

std::size_t arena_bytes(const RoundConfig& config) noexcept {
  const Layout& layout = config.layout;
  const std::size_t of_qp = layout.send_bytes() + layout.recv_bytes() + 4 * memory::cache_line_bytes;
  return config.test.qps * of_qp + memory::cache_line_bytes;
}

std::uint64_t open_flows(worker::Worker& worker, const RoundConfig& config, Rendezvous& meeting,
                         std::vector<Flow>& flows, std::uint32_t& tx_depth) {
  flows.resize(config.test.qps);
  std::vector<net::QpEndpoint> mine;
  const driver::QpConfig qp = qp_config(config, worker.device().limits());
  for (std::size_t i = 0; i < flows.size(); ++i) {
    flows[i].qp = &worker.create_qp(qp, config.signal_every);
    net::QpEndpoint endpoint = endpoint_of(worker, config, flows[i]);
    carve(worker, config, i, flows[i], endpoint);
    mine.push_back(endpoint);
  }
  const std::vector<net::QpEndpoint> peers = meeting.exchange(worker, mine);
  tx_depth = config.layout.tx_depth;
  for (std::size_t i = 0; i < flows.size(); ++i) {
    connect(worker, config, flows[i], mine[i], peers[i]);
    if (config.activity.active) tx_depth = depth_for(config, flows[i], tx_depth);
    if (config.layout.rx_depth != 0) {
      flows[i].to_post = config.layout.rx_depth;
      post_receives(config, worker.region().lkey(), static_cast<std::uint32_t>(i), flows[i]);
    }
  }
  return meeting.ready(worker);
}

void post_receives(const RoundConfig& config, std::uint32_t lkey, std::uint32_t index, Flow& flow) noexcept {
  const Layout& layout = config.layout;
  const bool has_buffer = config.test.op == Op::send;
  const auto bytes = static_cast<std::uint32_t>(layout.size + (config.test.is_ud() ? grh_bytes : 0));
  while (flow.to_post != 0) {
    const bool posted = has_buffer ? flow.qp->post_receive(queue::Sge{flow.receives.at, bytes, lkey}, index)
                                   : flow.qp->post_receive(std::span<const queue::Sge>{}, index);
    if (!posted) break;
    if (has_buffer) flow.receives.take(layout.stride_bytes);
    --flow.to_post;
  }
  flow.qp->publish_receives();
}

void fail(const worker::Worker& worker, const queue::Completion& completion) {
  throw Error(EIO, {.attempted = "go on with the test",
                    .on = fmt::format("lcore {}", worker.lcore()),
                    .why = queue::describe(completion),
                    .remedy = "The peer's own output may say more"});
}

void check_message(std::span<const std::byte> message, std::uint64_t key, std::uint64_t sequence,
                   unsigned qpn, LcoreOutcome& outcome) {
  ++outcome.checked;
  const auto damage = find_damage(message, pattern_key(key, sequence));
  if (!damage) return;
  if (outcome.damaged++ == 0)
    outcome.first_damage = fmt::format("message {} of QP {} differs from byte {} on", sequence, qpn, *damage);
}

void check_written(const RoundConfig& config, Flow& flow, LcoreOutcome& outcome) {
  std::uint64_t count = 0;
  std::memcpy(&count, flow.trailer, sizeof count);
  const std::uint64_t slots = config.layout.recv_slots;
  for (std::uint64_t sequence = count - std::min(count, slots); sequence < count; ++sequence)
    check_message({flow.written.begin + sequence % slots * config.layout.stride_bytes, config.layout.size},
                  flow.their_key, sequence, flow.qp->qpn(), outcome);
}

void conclude(worker::Worker& worker, SideOutcome& side) {
  worker.publish();
  worker.preemption().settle();
  const std::size_t index = worker.index();
  side.reports[index] = worker.report();
  LcoreOutcome& outcome = side.lcores[index];
  outcome.lcore = worker.lcore();
  outcome.probe = probe::to_json(side.reports[index]);
  outcome.pages = memory::name(worker.arena().page_kind());
}

}  // namespace pollen::bw
