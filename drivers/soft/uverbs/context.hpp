// An opening of the device: what the kernel keeps for a file descriptor of /dev/infiniband/uverbs0,
// and the commands on it.
//
//   context.cpp           dispatch, handles, mmap
//   device_commands.cpp   what the device and its port are
//   memory_commands.cpp   protection domains, regions, address handles
//   cq_commands.cpp       completion channels and queues, asynchronous events
//   qp_commands.cpp       queue pairs, shared receive queues: made, looked at, destroyed
//   qp_modify.cpp         a QP's states
//
// Thread rules: any thread; every command holds the NIC's lock.
#pragma once

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "pollen/drivers/soft/uverbs/command.hpp"
#include "pollen/drivers/soft/uverbs/fd_table.hpp"
#include "pollen/drivers/soft/uverbs/nic.hpp"
#include "pollen/drivers/soft/uverbs/objects.hpp"

namespace pollen::soft::uverbs {

inline constexpr std::uint32_t comp_vectors = 4;
inline constexpr std::uint32_t gid_count = 2;

// The command can't be carried out. `why` is for SOFTMLX5_LOG.
[[noreturn]] void refuse(int errnum, const char* command, std::string why);

class Context final : public FdTarget {
 public:
  Context() = default;
  ~Context() override;

  // Carries a command out; 0 or an errno.
  int invoke(ib_uverbs_ioctl_hdr& header) noexcept;
  void* map(void* address, std::size_t bytes, int protection, int flags, std::uint64_t offset) noexcept;

 private:
  void dispatch(Command& command);
  bool dispatch_method(Command& command);
  void write_command(Command& command);

  Nic& nic() const;
  std::uint32_t keep(std::unique_ptr<Object> object);
  template <typename T>
  T* find(std::uint64_t handle, const char* what) const {
    const auto found = objects_.find(static_cast<std::uint32_t>(handle));
    T* object = found == objects_.end() ? nullptr : dynamic_cast<T*>(found->second.get());
    if (object == nullptr) refuse(EINVAL, "find an object", std::string("there is no such ") + what);
    return object;
  }
  // Destroys it unless it is in use.
  template <typename T>
  void drop(std::uint64_t handle, const char* what) {
    if (find<T>(handle, what)->users != 0)
      refuse(EBUSY, "destroy an object", std::string("it is in use: ") + what);
    objects_.erase(static_cast<std::uint32_t>(handle));
  }

  void get_context(Command& command);
  void query_device(Command& command, bool extended);
  void query_port(Command& command);
  void query_gid_entry(Command& command);
  void query_gid_table(Command& command);

  void alloc_pd(Command& command);
  void query_pd(Command& command);
  void reg_mr(Command& command);
  void rereg_mr(Command& command);
  void query_mr(Command& command);
  void create_ah(Command& command);

  void alloc_uar(Command& command);
  void alloc_async_events(Command& command);
  void create_comp_channel(Command& command);
  void create_cq(Command& command);
  void resize_cq(Command& command);
  void destroy_cq(Command& command);

  void create_srq(Command& command);
  void modify_srq(Command& command);
  void query_srq(Command& command);
  void destroy_srq(Command& command);
  void create_qp(Command& command);
  void modify_qp(Command& command);
  void query_qp(Command& command);
  void destroy_qp(Command& command);

  Nic* nic_ = nullptr;
  std::map<std::uint32_t, std::unique_ptr<Object>> objects_;
  std::uint32_t handles_ = 0;
};

}  // namespace pollen::soft::uverbs
