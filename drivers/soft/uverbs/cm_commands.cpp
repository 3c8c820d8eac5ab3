// What the program asks of the connection manager, as librdmacm writes it to the channel.
#include <fcntl.h>
#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "pollen/base/error.hpp"
#include "pollen/drivers/soft/directory.hpp"
#include "pollen/drivers/soft/uverbs/cm.hpp"
#include "pollen/drivers/soft/uverbs/device_facts.hpp"
#include "pollen/drivers/soft/uverbs/libc.hpp"
#include "pollen/drivers/soft/uverbs/options.hpp"

namespace pollen::soft::uverbs {

namespace {

constexpr std::uint32_t udp_qkey = 0x01234567;
constexpr std::uint32_t rejected_no_service = 8;

[[noreturn]] void refuse(int errnum, const char* attempted, const char* why) {
  throw Error(errnum, {.attempted = attempted, .why = why});
}

template <typename T>
T read(const std::byte* in, std::size_t bytes) {
  T value{};
  std::memcpy(&value, in, std::min(bytes, sizeof value));
  return value;
}

template <typename T>
void answer(std::uint64_t response, const T& value) {
  if (response == 0) refuse(EFAULT, "answer a command", "it has no place for the answer");
  std::memcpy(reinterpret_cast<void*>(response), &value, sizeof value);
}

std::uint16_t port_of(const sockaddr_in6& address) noexcept {
  return ntohs(address.sin6_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                                              : address.sin6_port);
}

void set_port(sockaddr_in6& address, std::uint16_t port) noexcept {
  if (address.sin6_family == AF_INET)
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
  else
    address.sin6_port = htons(port);
}

bool is_any(const sockaddr_in6& address) noexcept {
  if (address.sin6_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr == htonl(INADDR_ANY);
  static constexpr std::uint8_t none[16] = {};
  return std::memcmp(&address.sin6_addr, none, sizeof none) == 0;
}

void check_family(const sockaddr_in6& address) {
  if (address.sin6_family != AF_INET && address.sin6_family != AF_INET6)
    refuse(EAFNOSUPPORT, "use an address", "it is neither IPv4 nor IPv6");
}

// A name that goes with its socket, and that other users' programs do not meet.
std::pair<sockaddr_un, socklen_t> name_of(std::uint16_t port_space, std::uint16_t port) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string text = fmt::format("pollen-cm-{}-{}-{}", geteuid(), port_space, port);
  std::memcpy(name.sun_path + 1, text.data(), text.size());
  return {name, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size())};
}

int new_socket() {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) throw Error(errno, {.attempted = "make a connection"});
  return fd;
}

}  // namespace

ssize_t write_cm_command(int fd, const std::shared_ptr<CmChannel>& channel, const void* data,
                         std::size_t bytes) noexcept {
  try {
    rdma_ucm_cmd_hdr header{};
    if (bytes < sizeof header) refuse(EINVAL, "carry out a command", "it is too short");
    std::memcpy(&header, data, sizeof header);
    Cm& cm = Cm::get();
    std::unique_lock lock(cm.mutex());
    cm.command(lock, fd, channel, header.cmd, static_cast<const std::byte*>(data) + sizeof header,
               std::min<std::size_t>(bytes - sizeof header, header.in));
    return static_cast<ssize_t>(bytes);
  } catch (const Error& error) {
    errno = error.code().value();
  } catch (const std::exception&) {
    errno = ENOMEM;
  }
  return -1;
}

void Cm::command(std::unique_lock<std::mutex>& lock, int fd, const std::shared_ptr<CmChannel>& channel,
                 std::uint32_t number, const std::byte* in, std::size_t bytes) {
  switch (number) {
    case RDMA_USER_CM_CMD_CREATE_ID:
      return create_id(channel, in, bytes);
    case RDMA_USER_CM_CMD_DESTROY_ID:
      return destroy_id(in, bytes);
    case RDMA_USER_CM_CMD_BIND_IP:
      return bind_ip(in, bytes);
    case RDMA_USER_CM_CMD_RESOLVE_IP:
      return resolve_ip(in, bytes);
    case RDMA_USER_CM_CMD_RESOLVE_ROUTE:
      return post(find(read<rdma_ucm_resolve_route>(in, bytes).id), cm_route_resolved);
    case RDMA_USER_CM_CMD_QUERY_ROUTE:
      return query_route(in, bytes);
    case RDMA_USER_CM_CMD_CONNECT:
      return connect(in, bytes);
    case RDMA_USER_CM_CMD_LISTEN:
      return listen(in, bytes);
    case RDMA_USER_CM_CMD_ACCEPT:
      return accept(in, bytes);
    case RDMA_USER_CM_CMD_REJECT:
      return reject(in, bytes);
    case RDMA_USER_CM_CMD_DISCONNECT:
      return disconnect(in, bytes);
    case RDMA_USER_CM_CMD_INIT_QP_ATTR:
      return init_qp_attr(in, bytes);
    case RDMA_USER_CM_CMD_GET_EVENT:
      return get_event(lock, fd, *channel, in, bytes);
    case RDMA_USER_CM_CMD_SET_OPTION:
      return set_option(in, bytes);
    case RDMA_USER_CM_CMD_NOTIFY:
      return;
    case RDMA_USER_CM_CMD_MIGRATE_ID:
      return migrate(channel, in, bytes);
    default:
      refuse(EOPNOTSUPP, "carry out a command", "the software NIC's connection manager has no such command");
  }
}

// --- identifiers and addresses ----------------------------------------------------------------

void Cm::create_id(const std::shared_ptr<CmChannel>& channel, const std::byte* in, std::size_t bytes) {
  const auto asked = read<rdma_ucm_create_id>(in, bytes);
  CmId& id = make(asked.ps, channel);
  id.uid = asked.uid;
  answer(asked.response, rdma_ucm_create_id_resp{id.id});
}

void Cm::destroy_id(const std::byte* in, std::size_t bytes) {
  const auto asked = read<rdma_ucm_destroy_id>(in, bytes);
  CmId& id = find(asked.id);
  if (const auto channel = id.channel.lock(); channel != nullptr) {
    // Connection requests that nobody has seen go with their listener.
    for (const CmEvent& event : channel->events)
      if (event.counted_for == id.id && event.event.id != id.id)
        if (const auto unseen = ids_.find(event.event.id); unseen != ids_.end()) {
          close(*unseen->second);
          ids_.erase(unseen);
        }
    const std::size_t gone =
        std::erase_if(channel->events, [&](const CmEvent& event) { return event.counted_for == id.id; });
    for (std::size_t i = 0; i < gone; ++i) channel->take_marker();
  }
  close(id);
  const rdma_ucm_destroy_id_resp out{id.events_reported};
  ids_.erase(id.id);
  answer(asked.response, out);
}

void Cm::set_option(const std::byte* in, std::size_t bytes) {
  const auto asked = read<rdma_ucm_set_option>(in, bytes);
  CmId& id = find(asked.id);
  // Type of service and reuse of addresses: nothing here depends on them.
  if (asked.level != RDMA_OPTION_ID || asked.optname > RDMA_OPTION_ID_ACK_TIMEOUT)
    refuse(ENOSYS, "set an option", "the software NIC's connection manager has no such option");
  if (asked.optname != RDMA_OPTION_ID_ACK_TIMEOUT) return;
  if (asked.optlen != sizeof id.timeout || asked.optval == 0)
    refuse(EINVAL, "set an acknowledgement timeout", "it is not one byte");
  std::memcpy(&id.timeout, reinterpret_cast<const void*>(asked.optval), sizeof id.timeout);
}

void Cm::bind_ip(const std::byte* in, std::size_t bytes) {
  const auto asked = read<rdma_ucm_bind_ip>(in, bytes);
  CmId& id = find(asked.id);
  check_family(asked.addr);
  if (id.state != CmState::idle || id.fd >= 0) refuse(EINVAL, "bind to an address", "it is bound already");
  id.from = asked.addr;
  id.bound = !is_any(asked.addr);
  std::uint16_t port = port_of(id.from);
  const bool any_port = port == 0;
  const int fd = new_socket();
  for (int attempt = 0; attempt < 4096; ++attempt) {
    if (any_port)
      port = static_cast<std::uint16_t>(32768 + (id.psn + static_cast<std::uint32_t>(attempt)) % 28000);
    const auto [name, length] = name_of(id.port_space, port);
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&name), length) == 0) {
      set_port(id.from, port);
      id.fd = fd;
      return;
    }
    if (!any_port || errno != EADDRINUSE) break;
  }
  const int reason = errno;
  libc::close(fd);
  throw Error(reason, {.attempted = fmt::format("bind to port {}", port)});
}

void Cm::resolve_ip(const std::byte* in, std::size_t bytes) {
  const auto asked = read<rdma_ucm_resolve_ip>(in, bytes);
  CmId& id = find(asked.id);
  check_family(asked.dst_addr);
  id.to = asked.dst_addr;
  if (id.from.sin6_family == 0 || is_any(id.from)) {
    const std::uint16_t port = id.from.sin6_family == 0 ? 0 : port_of(id.from);
    const bool given = asked.src_addr.sin6_family == asked.dst_addr.sin6_family && !is_any(asked.src_addr);
    id.from = given ? asked.src_addr : asked.dst_addr;
    set_port(id.from, port != 0 ? port : static_cast<std::uint16_t>(32768 + id.psn % 28000));
  }
  id.bound = true;
  post(id, cm_addr_resolved);
}

void Cm::query_route(const std::byte* in, std::size_t bytes) {
  const auto asked = read<rdma_ucm_query>(in, bytes);
  const CmId& id = find(asked.id);
  rdma_ucm_query_route_resp out{};
  out.src_addr = id.from;
  out.dst_addr = id.to;
  out.ibdev_index = 0xffffffff;
  if (id.bound) {
    const std::uint32_t device = Options::get().device;
    out.node_guid = facts::node_guid(device);
    out.port_num = 1;
    out.num_paths = 1;
    auto& path = out.ib_route[0];
    const driver::Gid gid = device_gid(device, 1);
    std::memcpy(path.sgid, gid.bytes.data(), sizeof path.sgid);
    std::memcpy(path.dgid, id.peer.kind == CmKind{} ? gid.bytes.data() : id.peer.gid.data(),
                sizeof path.dgid);
    path.pkey = 0xffff;
    path.mtu = IBV_MTU_4096;
    path.mtu_selector = 2;
    path.rate_selector = 2;
    path.hop_limit = 64;
    path.reversible = 1;
  }
  answer(asked.response, out);
}

// --- connections ------------------------------------------------------------------------------

void Cm::listen(const std::byte* in, std::size_t bytes) {
  const auto asked = read<rdma_ucm_listen>(in, bytes);
  CmId& id = find(asked.id);
  if (id.fd < 0) refuse(EINVAL, "listen", "it is bound to no address");
  if (::listen(id.fd, asked.backlog == 0 ? 1024 : static_cast<int>(std::min(asked.backlog, 4096U))) != 0)
    throw Error(errno, {.attempted = "listen"});
  id.state = CmState::listening;
  watch(id);
}

void Cm::connect(const std::byte* in, std::size_t bytes) {
  const auto asked = read<rdma_ucm_connect>(in, bytes);
  CmId& id = find(asked.id);
  if (id.state != CmState::idle || id.to.sin6_family == 0)
    refuse(EINVAL, "connect", "it is not ready for that");
  const auto& param = asked.conn_param;
  id.responder_resources = param.responder_resources;
  id.initiator_depth = param.initiator_depth;
  id.retry_count = param.retry_count & 7;
  id.rnr_retry_count = param.rnr_retry_count & 7;
  // What it was bound to is a name of its own; the connection does not need it.
  close(id);
  id.fd = new_socket();
  const auto [name, length] = name_of(id.port_space, port_of(id.to));
  if (::connect(id.fd, reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    close(id);
    id.state = CmState::over;
    return post(id, cm_rejected, rejected_no_service);
  }
  send(id, CmKind::request, &param);
  id.state = CmState::asked;
  watch(id);
}

// The passive side's yes, or the active side's last word.
void Cm::accept(const std::byte* in, std::size_t bytes) {
  const auto asked = read<rdma_ucm_accept>(in, bytes);
  CmId& id = find(asked.id);
  if (asked.conn_param.valid != 0) {
    if (id.state != CmState::requested) refuse(EINVAL, "accept a connection", "nobody asks for one");
    id.uid = asked.uid;
    id.responder_resources = asked.conn_param.responder_resources;
    id.initiator_depth = asked.conn_param.initiator_depth;
    auto param = asked.conn_param;
    if (id.is_datagram() && param.qkey == 0) param.qkey = udp_qkey;
    send(id, CmKind::reply, &param);
    id.state = id.is_datagram() ? CmState::connected : CmState::replied;
    return;
  }
  if (id.state != CmState::replied) refuse(EINVAL, "complete a connection", "the peer has not replied");
  send(id, CmKind::ready, nullptr);
  id.state = CmState::connected;
}

void Cm::reject(const std::byte* in, std::size_t bytes) {
  const auto asked = read<rdma_ucm_reject>(in, bytes);
  CmId& id = find(asked.id);
  if (id.state != CmState::requested && id.state != CmState::replied)
    refuse(EINVAL, "reject a connection", "nobody asks for one");
  rdma_ucm_conn_param param{};
  param.private_data_len = asked.private_data_len;
  std::memcpy(param.private_data, asked.private_data, asked.private_data_len);
  send(id, CmKind::reject, &param);
  id.state = CmState::over;
  close(id);
}

void Cm::disconnect(const std::byte* in, std::size_t bytes) {
  const auto asked = read<rdma_ucm_disconnect>(in, bytes);
  CmId& id = find(asked.id);
  if (id.state == CmState::over) return;  // the peer was faster
  if (id.state != CmState::connected && id.state != CmState::replied)
    refuse(EINVAL, "disconnect", "it is not connected");
  if (id.is_datagram()) return on_end(id);
  try {
    send(id, CmKind::disconnect, nullptr);
  } catch (const Error&) {
    on_end(id);
  }
}

void Cm::init_qp_attr(const std::byte* in, std::size_t bytes) {
  const auto asked = read<rdma_ucm_init_qp_attr>(in, bytes);
  const CmId& id = find(asked.id);
  const bool datagram = id.is_datagram();
  ib_uverbs_qp_attr out{};
  out.qp_state = asked.qp_state;
  out.qp_attr_mask = IBV_QP_STATE;
  out.port_num = 1;
  switch (asked.qp_state) {
    case IBV_QPS_INIT:
      out.qp_attr_mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | (datagram ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
      out.qkey = udp_qkey;
      out.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
      break;
    case IBV_QPS_RTR:
      if (datagram) break;
      if (id.peer.kind == CmKind{}) refuse(EINVAL, "connect a QP", "the peer is not known yet");
      out.qp_attr_mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
      std::memcpy(out.ah_attr.grh.dgid, id.peer.gid.data(), id.peer.gid.size());
      out.ah_attr.grh.sgid_index = 1;
      out.ah_attr.grh.hop_limit = 64;
      out.ah_attr.is_global = 1;
      out.ah_attr.port_num = 1;
      out.path_mtu = IBV_MTU_4096;
      out.dest_qp_num = id.peer.qpn;
      out.rq_psn = id.peer.psn;
      out.max_dest_rd_atomic = std::min<std::uint8_t>(id.responder_resources, 16);
      out.min_rnr_timer = 12;
      break;
    case IBV_QPS_RTS:
      out.qp_attr_mask |= IBV_QP_SQ_PSN;
      out.sq_psn = id.psn;
      if (datagram) break;
      out.qp_attr_mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
      out.timeout = std::min<std::uint8_t>(id.timeout, 31);
      out.retry_cnt = id.retry_count;
      out.rnr_retry = id.rnr_retry_count;
      out.max_rd_atomic = std::min<std::uint8_t>(id.initiator_depth, 16);
      break;
    default:
      refuse(EINVAL, "say what a QP needs", "there is no such state");
  }
  answer(asked.response, out);
}

// --- events -----------------------------------------------------------------------------------

void Cm::get_event(std::unique_lock<std::mutex>& lock, int fd, CmChannel& channel, const std::byte* in,
                   std::size_t bytes) {
  const auto asked = read<rdma_ucm_get_event>(in, bytes);
  while (channel.events.empty()) {
    if ((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0) refuse(EAGAIN, "get an event", "there is none");
    arrived_.wait(lock);
  }
  const CmEvent event = channel.events.front();
  channel.events.pop_front();
  channel.take_marker();
  if (const auto counted = ids_.find(event.counted_for); counted != ids_.end())
    ++counted->second->events_reported;
  answer(asked.response, event.event);
}

void Cm::migrate(const std::shared_ptr<CmChannel>& to, const std::byte* in, std::size_t bytes) {
  const auto asked = read<rdma_ucm_migrate_id>(in, bytes);
  CmId& id = find(asked.id);
  // It is written to the new channel.
  const auto from = id.channel.lock();
  if (from != nullptr && from != to) {
    for (const CmEvent& event : from->events)
      if (event.counted_for == id.id) enqueue(*to, event);
    const std::size_t gone =
        std::erase_if(from->events, [&](const CmEvent& event) { return event.counted_for == id.id; });
    for (std::size_t i = 0; i < gone; ++i) from->take_marker();
  }
  id.channel = to;
  answer(asked.response, rdma_ucm_migrate_resp{id.events_reported});
}

}  // namespace pollen::soft::uverbs
