// What the device and its port are: a ConnectX-5 as far as libmlx5 asks, with one Ethernet port.
#include <infiniband/verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>

#include <cerrno>
#include <cstring>

#include "pollen/drivers/soft/uverbs/context.hpp"
#include "pollen/drivers/soft/uverbs/device_facts.hpp"

namespace pollen::soft::uverbs {

void Context::get_context(Command& command) {
  const auto asked = command.in<mlx5_ib_alloc_ucontext_req_v2>(UVERBS_ATTR_UHW_IN);
  const bool import = command.method() == UVERBS_METHOD_QUERY_CONTEXT;
  // libmlx5 then opens the device without.
  if (!import && (asked.flags & MLX5_IB_ALLOC_UCTX_DEVX) != 0)
    refuse(EOPNOTSUPP, "open the device for DEVX", "the software NIC has no firmware to talk to");
  mlx5_ib_alloc_ucontext_resp out{};
  out.qp_tab_size = 1 << 18;
  out.bf_reg_size = 512;
  out.tot_bfregs = 0;  // registers are asked for one page at a time
  out.cache_line_size = 64;
  out.max_sq_desc_sz = facts::max_send_wqe_bytes;
  out.max_rq_desc_sz = facts::max_recv_wqe_bytes;
  out.max_send_wqebb = facts::max_wrs;
  out.max_recv_wr = facts::max_wrs;
  out.max_srq_recv_wr = facts::max_wrs;
  out.num_ports = 1;
  out.response_length = sizeof out;
  out.cqe_version = 1;
  out.cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH;
  out.eth_min_inline = MLX5_USER_INLINE_MODE_NONE;
  out.clock_info_versions = 1 << MLX5_IB_CLOCK_INFO_V1;
  out.log_uar_size = 12;
  out.num_uars_per_page = 1;
  command.out(
      import ? std::uint16_t{MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX} : std::uint16_t{UVERBS_ATTR_UHW_OUT}, out);
  command.out<std::uint32_t>(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, comp_vectors);
  command.out<std::uint64_t>(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS);
}

void Context::query_device(Command& command, bool extended) {
  ib_uverbs_ex_query_device_resp out{};
  auto& base = out.base;
  base.fw_ver = facts::firmware;
  base.node_guid = facts::node_guid(nic().device());
  base.sys_image_guid = base.node_guid;
  base.max_mr_size = std::uint64_t{1} << 46;
  base.page_size_cap = ~std::uint64_t{4095};
  base.vendor_id = facts::vendor_id;
  base.vendor_part_id = facts::part_id;
  base.max_qp = qps_per_engine - 2;
  base.max_qp_wr = facts::max_wrs;
  base.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_SYS_IMAGE_GUID |
                          IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_PORT_ACTIVE_EVENT;
  base.max_sge = facts::max_sge;
  base.max_sge_rd = facts::max_sge;
  base.max_cq = 1 << 24;
  base.max_cqe = facts::max_cqes - 1;
  base.max_mr = 1 << 18;
  base.max_pd = 1 << 24;
  base.max_qp_rd_atom = 16;
  base.max_res_rd_atom = 16 * (qps_per_engine - 2);
  base.max_qp_init_rd_atom = 16;
  base.atomic_cap = IBV_ATOMIC_HCA;
  base.max_ah = 1 << 30;
  base.max_srq = 1 << 23;
  base.max_srq_wr = facts::max_wrs - 1;
  base.max_srq_sge = facts::max_sge;
  base.max_pkeys = 1;
  base.local_ca_ack_delay = 16;
  base.phys_port_cnt = 1;
  if (!extended) return command.out(UVERBS_ATTR_CORE_OUT, base);
  out.response_length = sizeof out;
  out.timestamp_mask = ~std::uint64_t{0};
  out.hca_core_clock = 1'000'000;  // kHz: timestamps are in ns
  out.device_cap_flags_ex = base.device_cap_flags;
  command.out(UVERBS_ATTR_CORE_OUT, out);
  mlx5_ib_query_device_resp driver{};
  driver.response_length = sizeof driver;
  command.out(UVERBS_ATTR_UHW_OUT, driver);
}

void Context::query_port(Command& command) {
  if (command.in<std::uint8_t>(UVERBS_ATTR_QUERY_PORT_PORT_NUM) != 1)
    refuse(EINVAL, "query a port", "the device has port 1");
  ib_uverbs_query_port_resp_ex out{};
  auto& port = out.legacy_resp;
  port.port_cap_flags = facts::port_cap_flags;
  port.max_msg_sz = facts::max_message_bytes;
  port.gid_tbl_len = gid_count;
  port.pkey_tbl_len = 1;
  port.state = IBV_PORT_ACTIVE;
  port.max_mtu = IBV_MTU_4096;
  port.active_mtu = IBV_MTU_4096;
  port.max_vl_num = 1;
  port.active_width = 2;   // 4 lanes
  port.active_speed = 32;  // of 25 Gb/s
  port.phys_state = 5;     // link up
  port.link_layer = IBV_LINK_LAYER_ETHERNET;
  command.out(UVERBS_ATTR_QUERY_PORT_RESP, out);
}

namespace {

ib_uverbs_gid_entry gid_entry(std::uint32_t device, std::uint32_t index) {
  ib_uverbs_gid_entry entry{};
  const driver::Gid gid = device_gid(device, index);
  std::memcpy(entry.gid, gid.bytes.data(), gid.bytes.size());
  entry.gid_index = index;
  entry.port_num = 1;
  entry.gid_type = IB_UVERBS_GID_TYPE_ROCE_V2;
  return entry;
}

}  // namespace

void Context::query_gid_entry(Command& command) {
  const auto port = command.in<std::uint32_t>(UVERBS_ATTR_QUERY_GID_ENTRY_PORT);
  const auto index = command.in<std::uint32_t>(UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX);
  if (port != 1 || command.in<std::uint32_t>(UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS) != 0)
    refuse(EINVAL, "query a GID", "the device has port 1, and there are no flags");
  if (index >= gid_count) refuse(EINVAL, "query a GID", "the port has two");
  command.out(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, gid_entry(nic().device(), index));
}

void Context::query_gid_table(Command& command) {
  const auto entry_bytes = command.in<std::uint64_t>(UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE);
  const std::size_t room = command.bytes(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES);
  if (command.in<std::uint32_t>(UVERBS_ATTR_QUERY_GID_TABLE_FLAGS) != 0 ||
      entry_bytes < sizeof(ib_uverbs_gid_entry) || entry_bytes > 4096)
    refuse(EINVAL, "query the GIDs", "the entries' size or flags make no sense");
  if (room / entry_bytes < gid_count) refuse(EINVAL, "query the GIDs", "there is no room for two");
  std::vector<std::byte> out(entry_bytes * gid_count);
  for (std::uint32_t index = 0; index < gid_count; ++index) {
    const auto entry = gid_entry(nic().device(), index);
    std::memcpy(out.data() + index * entry_bytes, &entry, sizeof entry);
  }
  command.out_bytes(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, out.data(), out.size());
  command.out<std::uint64_t>(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, gid_count);
}

}  // namespace pollen::soft::uverbs
