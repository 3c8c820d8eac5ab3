// Protection domains, memory regions, address handles.
#include <infiniband/verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "pollen/drivers/soft/uverbs/context.hpp"

namespace pollen::soft::uverbs {

namespace {

constexpr std::uint64_t page_bytes = 4096;
constexpr std::uint32_t optional_access = 0x3ff00000;  // may be ignored
constexpr std::uint32_t known_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                       IBV_ACCESS_MW_BIND | IBV_ACCESS_HUGETLB | optional_access;

void check_access(std::uint32_t access) {
  if ((access & IBV_ACCESS_ON_DEMAND) != 0)
    refuse(EOPNOTSUPP, "register memory", "the software NIC has no on-demand paging");
  if ((access & ~known_access) != 0)
    refuse(EINVAL, "register memory", "it has access flags that nobody knows");
  const bool remote_change = (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
  if (remote_change && (access & IBV_ACCESS_LOCAL_WRITE) == 0)
    refuse(EINVAL, "register memory", "remote write and remote atomic access need local write access, too");
}

driver::Access to_access(std::uint32_t access) noexcept {
  static_assert(
      static_cast<std::uint32_t>(driver::all_access) ==
      (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
  return static_cast<driver::Access>(access & static_cast<std::uint32_t>(driver::all_access));
}

// The kernel would pin the pages; here they are at least made to be there.
void check_memory(std::uint64_t start, std::uint64_t bytes, bool writable) {
  if (bytes == 0) refuse(EINVAL, "register memory", "it is empty");
  if (start + bytes < start) refuse(EINVAL, "register memory", "it goes beyond the address space");
  const std::uint64_t first = start & ~(page_bytes - 1);
  const std::uint64_t end = (start + bytes + page_bytes - 1) & ~(page_bytes - 1);
  const int advice = writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  if (madvise(reinterpret_cast<void*>(first), end - first, advice) == 0) return;
  // A kernel before 5.14 does not know the advice.
  if (errno == EINVAL && madvise(reinterpret_cast<void*>(first), end - first, MADV_NORMAL) == 0) return;
  if (errno == EINTR || errno == EAGAIN) return;
  refuse(errno == ENOMEM ? EFAULT : errno, "register memory",
         "some of it is not mapped, or may not be accessed so");
}

}  // namespace

void Context::alloc_pd(Command& command) {
  auto pd = std::make_unique<PdObject>(nic().next_number());
  const mlx5_ib_alloc_pd_resp driver{pd->number};
  command.out<std::uint32_t>(UVERBS_ATTR_CORE_OUT, keep(std::move(pd)));
  command.out(UVERBS_ATTR_UHW_OUT, driver);
}

void Context::query_pd(Command& command) {
  const PdObject* pd = find<PdObject>(command.number(MLX5_IB_ATTR_QUERY_PD_HANDLE), "protection domain");
  command.out<std::uint32_t>(MLX5_IB_ATTR_QUERY_PD_RESP_PDN, pd->number);
}

void Context::reg_mr(Command& command) {
  const auto asked = command.in<ib_uverbs_reg_mr>(UVERBS_ATTR_CORE_IN);
  PdObject* pd = find<PdObject>(asked.pd_handle, "protection domain");
  check_access(asked.access_flags);
  if ((asked.start & (page_bytes - 1)) != (asked.hca_va & (page_bytes - 1)))
    refuse(EINVAL, "register memory", "its address and what it is to be called differ within a page");
  check_memory(asked.start, asked.length, (asked.access_flags & IBV_ACCESS_LOCAL_WRITE) != 0);
  auto mr = std::make_unique<MrObject>(nic(), pd);
  mr->memory = {reinterpret_cast<std::byte*>(asked.start), asked.length};
  mr->address = asked.hca_va;
  mr->access = asked.access_flags;
  mr->key = nic().regions().add(pd->number, mr->memory, to_access(mr->access), {}, mr->address);
  const std::uint32_t key = mr->key;
  const ib_uverbs_reg_mr_resp out{keep(std::move(mr)), key, key};
  command.out(UVERBS_ATTR_CORE_OUT, out);
}

void Context::rereg_mr(Command& command) {
  const auto asked = command.in<ib_uverbs_rereg_mr>(UVERBS_ATTR_CORE_IN);
  constexpr std::uint32_t known =
      IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
  if (asked.flags == 0 || (asked.flags & ~known) != 0)
    refuse(EINVAL, "register memory again", "the flags make no sense");
  MrObject* mr = find<MrObject>(asked.mr_handle, "memory region");
  const std::uint32_t access =
      (asked.flags & IBV_REREG_MR_CHANGE_ACCESS) != 0 ? asked.access_flags : mr->access;
  check_access(access);
  PdObject* pd = (asked.flags & IBV_REREG_MR_CHANGE_PD) != 0
                     ? find<PdObject>(asked.pd_handle, "protection domain")
                     : mr->pd.get();
  std::span<std::byte> memory = mr->memory;
  std::uint64_t address = mr->address;
  if ((asked.flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
    memory = {reinterpret_cast<std::byte*>(asked.start), asked.length};
    address = asked.hca_va;
  }
  check_memory(reinterpret_cast<std::uint64_t>(memory.data()), memory.size(),
               (access & IBV_ACCESS_LOCAL_WRITE) != 0);
  nic().regions().change(mr->key, pd->number, memory, to_access(access), address);
  mr->pd = Use<PdObject>(pd);
  mr->memory = memory;
  mr->address = address;
  mr->access = access;
  const ib_uverbs_rereg_mr_resp out{mr->key, mr->key};
  command.out(UVERBS_ATTR_CORE_OUT, out);
}

void Context::query_mr(Command& command) {
  const MrObject* mr = find<MrObject>(command.number(UVERBS_ATTR_QUERY_MR_HANDLE), "memory region");
  command.out<std::uint32_t>(UVERBS_ATTR_QUERY_MR_RESP_LKEY, mr->key);
  command.out<std::uint32_t>(UVERBS_ATTR_QUERY_MR_RESP_RKEY, mr->key);
  command.out<std::uint64_t>(UVERBS_ATTR_QUERY_MR_RESP_LENGTH, mr->memory.size());
  command.out<std::uint64_t>(UVERBS_ATTR_QUERY_MR_RESP_IOVA, mr->address);
}

void Context::create_ah(Command& command) {
  const auto asked = command.in<ib_uverbs_create_ah>(UVERBS_ATTR_CORE_IN);
  PdObject* pd = find<PdObject>(asked.pd_handle, "protection domain");
  if (asked.attr.port_num != 1 || asked.attr.is_global == 0 || asked.attr.grh.sgid_index >= gid_count)
    refuse(EINVAL, "create an address handle", "on Ethernet it needs port 1 and one of its two GIDs");
  command.out<std::uint32_t>(UVERBS_ATTR_CORE_OUT, keep(std::make_unique<AhObject>(pd)));
  mlx5_ib_create_ah_resp driver{};
  driver.response_length = sizeof driver;
  driver.dmac[0] = 0x02;
  std::memcpy(driver.dmac + 3, asked.attr.grh.dgid + 13, 3);
  command.out(UVERBS_ATTR_UHW_OUT, driver);
}

}  // namespace pollen::soft::uverbs
