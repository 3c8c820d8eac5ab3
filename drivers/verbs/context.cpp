#include "pollen/drivers/verbs/context.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "pollen/base/error.hpp"

namespace pollen::verbs {

namespace {

namespace fs = std::filesystem;

int read_numa_node(const char* ibdev_path) {
  std::ifstream file(std::string(ibdev_path) + "/device/numa_node");
  int node = -1;
  file >> node;
  return node;
}

bool holds_anything(const fs::path& directory) {
  std::error_code ignored;
  return fs::directory_iterator(directory, ignored) != fs::directory_iterator();
}

driver::GidType gid_type_of(std::uint32_t type) noexcept {
  switch (type) {
    case IBV_GID_TYPE_ROCE_V1:
      return driver::GidType::roce_v1;
    case IBV_GID_TYPE_ROCE_V2:
      return driver::GidType::roce_v2;
    default:
      return driver::GidType::infiniband;
  }
}

// Gb/s of one lane and lanes of a link, by their codes.
double lane_gbit(std::uint8_t speed) noexcept {
  switch (speed) {
    case 1:
      return 2.5;
    case 2:
      return 5;
    case 4:
    case 8:
      return 10;
    case 16:
      return 14;
    case 32:
      return 25;
    case 64:
      return 50;
    case 128:
      return 100;
    default:
      return 0;
  }
}
int lanes(std::uint8_t width) noexcept {
  switch (width) {
    case 1:
      return 1;
    case 2:
      return 4;
    case 4:
      return 8;
    case 8:
      return 12;
    case 16:
      return 2;
    default:
      return 0;
  }
}

driver::Limits read_limits(ibv_context* context) {
  ibv_device_attr attr{};
  ibv_query_device(context, &attr);
  driver::Limits out;
  out.max_qps = static_cast<std::uint32_t>(attr.max_qp);
  out.max_send_wrs = static_cast<std::uint32_t>(attr.max_qp_wr);
  out.max_recv_wrs = static_cast<std::uint32_t>(attr.max_qp_wr);
  out.max_sge = static_cast<std::uint32_t>(attr.max_sge);
  out.max_cqs = static_cast<std::uint32_t>(attr.max_cq);
  out.max_cq_entries = static_cast<std::uint32_t>(attr.max_cqe);
  out.max_region_bytes = attr.max_mr_size;
  out.max_message_bytes = 1U << 30;
  out.max_reads_out = static_cast<std::uint8_t>(std::min(attr.max_qp_init_rd_atom, 255));
  out.max_reads_in = static_cast<std::uint8_t>(std::min(attr.max_qp_rd_atom, 255));
  return out;
}

}  // namespace

DeviceList::DeviceList() {
  int count = 0;
  list_ = ibv_get_device_list(&count);
  for (int i = 0; list_ != nullptr && i < count; ++i)
    devices_.push_back({list_[i], ibv_get_device_name(list_[i]), read_numa_node(list_[i]->ibdev_path)});
}

DeviceList::~DeviceList() {
  if (list_ != nullptr) ibv_free_device_list(list_);
}

NoDevice why_no_device(const std::string& root) {
  const fs::path sys = fs::path(root) / "sys/class";
  std::error_code ignored;
  if (!holds_anything(sys / "infiniband"))
    return {
        "the kernel has no RDMA device",
        "Check that a NIC is there (lspci) and its driver loaded (modprobe mlx5_ib), or use --driver soft"};
  if (!fs::exists(sys / "infiniband_verbs", ignored) || !holds_anything(sys / "infiniband_verbs"))
    return {"the kernel has RDMA devices, but ib_uverbs is not loaded", "Load it: modprobe ib_uverbs"};
  // libibverbs leaves a device out that has no node.
  for (const auto& entry : fs::directory_iterator(sys / "infiniband_verbs", ignored)) {
    const std::string node = fmt::format("/dev/infiniband/{}", entry.path().filename().string());
    if (fs::exists(entry.path() / "ibdev", ignored) && !fs::exists(fs::path(root) / node.substr(1), ignored))
      return {
          fmt::format("there are RDMA devices, but their node {} is missing", node),
          fmt::format(
              "In a container pass it in (docker run --device={} --cap-add=IPC_LOCK); on a host start udev",
              node)};
  }
  return {"no provider library of libibverbs knows the devices that there are",
          "Install the providers: apt-get install ibverbs-providers"};
}

Context::Context(ibv_context* context, std::string name)
    : context_(context), name_(std::move(name)), limits_(read_limits(context)) {
  make_nonblocking(context_->async_fd);
}

Context::~Context() { ibv_close_device(context_); }

driver::PortInfo Context::query_port(std::uint32_t port) const {
  ibv_port_attr attr{};
  if (const int failed = ibv_query_port(context_, static_cast<std::uint8_t>(port), &attr); failed != 0)
    fail(failed, fmt::format("query port {}", port),
         "Name a port that the device has (ibv_devinfo lists them)");
  driver::PortInfo out;
  out.active = attr.state == IBV_PORT_ACTIVE;
  out.link_layer = attr.link_layer == IBV_LINK_LAYER_ETHERNET ? driver::LinkLayer::ethernet
                                                              : driver::LinkLayer::infiniband;
  out.mtu_bytes = mtu_bytes(attr.active_mtu);
  out.lid = attr.lid;
  out.gbit_per_s = lane_gbit(attr.active_speed) * lanes(attr.active_width);
  out.needs_grh = attr.link_layer == IBV_LINK_LAYER_ETHERNET || (attr.flags & IBV_QPF_GRH_REQUIRED) != 0;
  for (int i = 0; i < attr.gid_tbl_len; ++i) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context_, port, static_cast<std::uint32_t>(i), &entry, 0) != 0) continue;
    driver::Gid gid;
    std::memcpy(gid.bytes.data(), entry.gid.raw, gid.bytes.size());
    if (gid.is_zero()) continue;
    out.gids.push_back({static_cast<std::uint32_t>(i), gid, gid_type_of(entry.gid_type)});
  }
  return out;
}

std::optional<driver::Event> Context::next_event() const {
  using Kind = driver::Event::Kind;
  ibv_async_event event{};
  if (ibv_get_async_event(context_, &event) != 0) return std::nullopt;
  const auto port = static_cast<std::uint32_t>(event.element.port_num);
  driver::Event out{Kind::device_fatal, 0, {}};
  switch (event.event_type) {
    case IBV_EVENT_PORT_ACTIVE:
      out = {Kind::port_up, port, fmt::format("port {} of {} is up", port, name_)};
      break;
    case IBV_EVENT_PORT_ERR:
      out = {Kind::port_down, port,
             fmt::format("port {} of {} is down: check cable, switch and `ip link`", port, name_)};
      break;
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
      out = {Kind::gid_change, port, fmt::format("the addresses of port {} of {} have changed", port, name_)};
      break;
    case IBV_EVENT_CQ_ERR:
      out = {Kind::cq_overrun, 0,
             fmt::format("a completion queue of {} ran over: every QP on it is broken", name_)};
      break;
    case IBV_EVENT_DEVICE_FATAL:
      out.text = fmt::format("{} has failed for good: see dmesg; its QPs are gone", name_);
      break;
    default:
      if (event.event_type <= IBV_EVENT_PATH_MIG_ERR || event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED)
        out = {Kind::qp_error, event.element.qp->qp_num,
               fmt::format("QP {} of {}: {}", event.element.qp->qp_num, name_,
                           ibv_event_type_str(event.event_type))};
      else
        out.text = fmt::format("{}: {}", name_, ibv_event_type_str(event.event_type));
  }
  ibv_ack_async_event(&event);
  return out;
}

void Context::fail(int errnum, std::string attempted, std::string remedy) const {
  std::string why;
  rlimit limit{};
  if (errnum == ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < (rlim_t{1} << 30)) {
    why = fmt::format("out of memory; RLIMIT_MEMLOCK is {} KiB, and pinned memory counts against it",
                      limit.rlim_cur >> 10);
    if (remedy.empty())
      remedy = "Raise it: ulimit -l unlimited (as root), or memlock in /etc/security/limits.conf";
  }
  throw Error(
      errnum,
      {.attempted = std::move(attempted), .on = name_, .why = std::move(why), .remedy = std::move(remedy)});
}

void make_nonblocking(int fd) noexcept { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

int to_ibv_access(driver::Access access) noexcept {
  using driver::Access;
  int out = 0;
  const std::array<std::pair<Access, int>, 5> map{{{Access::local_write, IBV_ACCESS_LOCAL_WRITE},
                                                   {Access::remote_write, IBV_ACCESS_REMOTE_WRITE},
                                                   {Access::remote_read, IBV_ACCESS_REMOTE_READ},
                                                   {Access::remote_atomic, IBV_ACCESS_REMOTE_ATOMIC},
                                                   {Access::relaxed_ordering, IBV_ACCESS_RELAXED_ORDERING}}};
  for (const auto& [ours, theirs] : map)
    if (driver::allows(access, ours)) out |= theirs;
  return out;
}

ibv_mtu to_ibv_mtu(std::uint32_t bytes) noexcept {
  if (bytes >= 4096) return IBV_MTU_4096;
  if (bytes >= 2048) return IBV_MTU_2048;
  if (bytes >= 1024) return IBV_MTU_1024;
  if (bytes >= 512) return IBV_MTU_512;
  return IBV_MTU_256;
}

std::uint32_t mtu_bytes(ibv_mtu mtu) noexcept { return 128U << mtu; }

ibv_qp_type to_ibv_type(driver::Transport transport) noexcept {
  switch (transport) {
    case driver::Transport::uc:
      return IBV_QPT_UC;
    case driver::Transport::ud:
      return IBV_QPT_UD;
    default:
      return IBV_QPT_RC;
  }
}

ibv_ah_attr to_ibv_path(const driver::PathConfig& path, std::uint32_t port, bool needs_grh) noexcept {
  ibv_ah_attr out{};
  out.port_num = static_cast<std::uint8_t>(port);
  out.dlid = path.remote_lid;
  out.sl = path.service_level;
  if (needs_grh || path.remote_lid == 0) {
    out.is_global = 1;
    std::memcpy(out.grh.dgid.raw, path.remote_gid.bytes.data(), sizeof out.grh.dgid.raw);
    out.grh.sgid_index = static_cast<std::uint8_t>(path.local_gid_index);
    out.grh.hop_limit = path.hop_limit;
    out.grh.traffic_class = path.traffic_class;
  }
  return out;
}

void to_init(const Context& context, ibv_qp* qp, std::uint32_t port, const driver::InitConfig& config) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = static_cast<std::uint8_t>(port);
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  if (qp->qp_type == IBV_QPT_UD) {
    attr.qkey = config.qkey;
    mask |= IBV_QP_QKEY;
  } else {
    attr.qp_access_flags = static_cast<unsigned>(to_ibv_access(config.remote_access));
    mask |= IBV_QP_ACCESS_FLAGS;
  }
  if (const int failed = ibv_modify_qp(qp, &attr, mask); failed != 0)
    context.fail(failed, fmt::format("move QP {} to init", qp->qp_num));
}

void to_rtr(const Context& context, ibv_qp* qp, std::uint32_t port, bool needs_grh,
            const driver::RtrConfig& config) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  int mask = IBV_QP_STATE;
  if (qp->qp_type != IBV_QPT_UD) {
    attr.ah_attr = to_ibv_path(config.path, port, needs_grh);
    attr.path_mtu = to_ibv_mtu(config.mtu_bytes);
    attr.dest_qp_num = config.remote_qpn;
    attr.rq_psn = config.remote_psn;
    mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  }
  if (qp->qp_type == IBV_QPT_RC) {
    attr.max_dest_rd_atomic = config.reads_in;
    attr.min_rnr_timer = config.min_rnr_timer;
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  }
  if (const int failed = ibv_modify_qp(qp, &attr, mask); failed != 0)
    context.fail(
        failed,
        fmt::format("connect QP {} to QP {} at {} (GID index {}, MTU {})", qp->qp_num, config.remote_qpn,
                    to_string(config.path.remote_gid), config.path.local_gid_index, config.mtu_bytes),
        "Check that both ports are up, on one network, and that the GIDs are of one type");
}

void to_rts(const Context& context, ibv_qp* qp, const driver::RtsConfig& config) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = config.local_psn;
  int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (qp->qp_type == IBV_QPT_RC) {
    attr.timeout = config.timeout;
    attr.retry_cnt = config.retry_count;
    attr.rnr_retry = config.rnr_retry;
    attr.max_rd_atomic = config.reads_out;
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  if (const int failed = ibv_modify_qp(qp, &attr, mask); failed != 0)
    context.fail(failed, fmt::format("move QP {} to rts", qp->qp_num));
}

void to_state(const Context& context, ibv_qp* qp, ibv_qp_state state) {
  ibv_qp_attr attr{};
  attr.qp_state = state;
  if (const int failed = ibv_modify_qp(qp, &attr, IBV_QP_STATE); failed != 0)
    context.fail(failed, fmt::format("move QP {} to {}", qp->qp_num, name(state_of(state))));
}

driver::QpState state_of(ibv_qp_state state) noexcept {
  switch (state) {
    case IBV_QPS_RESET:
      return driver::QpState::reset;
    case IBV_QPS_INIT:
      return driver::QpState::init;
    case IBV_QPS_RTR:
      return driver::QpState::rtr;
    case IBV_QPS_RTS:
      return driver::QpState::rts;
    case IBV_QPS_SQD:
      return driver::QpState::sqd;
    case IBV_QPS_SQE:
      return driver::QpState::sqe;
    default:
      return driver::QpState::error;
  }
}

}  // namespace pollen::verbs
