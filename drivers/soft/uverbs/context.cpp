#include "pollen/drivers/soft/uverbs/context.hpp"

#include <fmt/format.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <new>

#include "pollen/base/error.hpp"

namespace pollen::soft::uverbs {

namespace {

// Programs get an errno from the kernel, and no more from us, unless they ask.
void log(const char* sentence) noexcept {
  static const char* const wanted = std::getenv("SOFTMLX5_LOG");
  if (wanted != nullptr) std::fprintf(stderr, "softmlx5: %s\n", sentence);
}

}  // namespace

void refuse(int errnum, const char* command, std::string why) {
  throw Error(errnum, {.attempted = command, .on = "mlx5_0", .why = std::move(why)});
}

Context::~Context() {
  if (nic_ == nullptr || Nic::existing() != nic_) {
    // After a fork, or past the end of the device: nothing that is left may be touched.
    for (auto& [handle, object] : objects_) static_cast<void>(object.release());
    return;
  }
  const Nic::Command hold(*nic_);
  // What is not in use by anything else goes first.
  while (!objects_.empty()) {
    const std::size_t before = objects_.size();
    std::erase_if(objects_, [](const auto& entry) { return entry.second->users == 0; });
    if (objects_.size() == before) break;
  }
}

Nic& Context::nic() const {
  if (nic_ == nullptr || Nic::existing() != nic_)
    refuse(ENODEV, "use the device", "it was opened before a fork");
  return *nic_;
}

std::uint32_t Context::keep(std::unique_ptr<Object> object) {
  const std::uint32_t handle = ++handles_;
  objects_.emplace(handle, std::move(object));
  return handle;
}

int Context::invoke(ib_uverbs_ioctl_hdr& header) noexcept {
  try {
    Command command(header);
    // The probe for the whole interface: a command without its input.
    if (command.object() == UVERBS_OBJECT_DEVICE && command.method() == UVERBS_METHOD_INVOKE_WRITE &&
        !command.has(UVERBS_ATTR_CORE_IN))
      return ENOSPC;
    if (nic_ == nullptr) nic_ = &Nic::get();
    const Nic::Command hold(nic());
    dispatch(command);
    nic().notify_all();
    return 0;
  } catch (const Error& error) {
    log(error.what());
    return error.code().value();
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  } catch (const std::exception& error) {
    log(error.what());
    return EIO;
  }
}

void Context::dispatch(Command& command) {
  if (dispatch_method(command)) return;
  refuse(EPROTONOSUPPORT, "carry out a command",
         fmt::format("the software NIC has no method {} of object {}", command.method(), command.object()));
}

bool Context::dispatch_method(Command& command) {
  const auto handle = [&](std::uint16_t id) { return command.number(id); };
  switch (command.object()) {
    case UVERBS_OBJECT_DEVICE:
      switch (command.method()) {
        case UVERBS_METHOD_INVOKE_WRITE:
          return write_command(command), true;
        case UVERBS_METHOD_QUERY_PORT:
          return query_port(command), true;
        case UVERBS_METHOD_GET_CONTEXT:
          return get_context(command), true;
        case UVERBS_METHOD_QUERY_CONTEXT:
          return get_context(command), true;
        case UVERBS_METHOD_QUERY_GID_ENTRY:
          return query_gid_entry(command), true;
        case UVERBS_METHOD_QUERY_GID_TABLE:
          return query_gid_table(command), true;
        default:
          return false;
      }
    case UVERBS_OBJECT_ASYNC_EVENT:
      if (command.method() != UVERBS_METHOD_ASYNC_EVENT_ALLOC) return false;
      return alloc_async_events(command), true;
    case UVERBS_OBJECT_PD:
      if (command.method() == MLX5_IB_METHOD_PD_QUERY) return query_pd(command), true;
      if (command.method() != UVERBS_METHOD_PD_DESTROY) return false;
      return drop<PdObject>(handle(UVERBS_ATTR_DESTROY_PD_HANDLE), "protection domain"), true;
    case UVERBS_OBJECT_AH:
      if (command.method() != UVERBS_METHOD_AH_DESTROY) return false;
      return drop<AhObject>(handle(UVERBS_ATTR_DESTROY_AH_HANDLE), "address handle"), true;
    case UVERBS_OBJECT_MR:
      if (command.method() == UVERBS_METHOD_QUERY_MR) return query_mr(command), true;
      if (command.method() != UVERBS_METHOD_MR_DESTROY) return false;
      return drop<MrObject>(handle(UVERBS_ATTR_DESTROY_MR_HANDLE), "memory region"), true;
    case UVERBS_OBJECT_CQ:
      switch (command.method()) {
        case UVERBS_METHOD_CQ_CREATE:
          return create_cq(command), true;
        case UVERBS_METHOD_CQ_DESTROY:
          return destroy_cq(command), true;
        default:
          return false;
      }
    case UVERBS_OBJECT_SRQ:
      switch (command.method()) {
        case UVERBS_METHOD_SRQ_CREATE:
          return create_srq(command), true;
        case UVERBS_METHOD_SRQ_DESTROY:
          return destroy_srq(command), true;
        default:
          return false;
      }
    case UVERBS_OBJECT_QP:
      switch (command.method()) {
        case UVERBS_METHOD_QP_CREATE:
          return create_qp(command), true;
        case UVERBS_METHOD_QP_DESTROY:
          return destroy_qp(command), true;
        default:
          return false;
      }
    case MLX5_IB_OBJECT_UAR:
      switch (command.method()) {
        case MLX5_IB_METHOD_UAR_OBJ_ALLOC:
          return alloc_uar(command), true;
        case MLX5_IB_METHOD_UAR_OBJ_DESTROY:
          return drop<UarObject>(handle(MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE), "register page"), true;
        default:
          return false;
      }
    default:
      return false;
  }
}

void Context::write_command(Command& command) {
  const auto number = static_cast<std::uint32_t>(command.number(UVERBS_ATTR_WRITE_CMD));
  switch (number) {
    case IB_USER_VERBS_CMD_QUERY_DEVICE:
      return query_device(command, false);
    case IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_QUERY_DEVICE:
      return query_device(command, true);
    case IB_USER_VERBS_CMD_ALLOC_PD:
      return alloc_pd(command);
    case IB_USER_VERBS_CMD_REG_MR:
      return reg_mr(command);
    case IB_USER_VERBS_CMD_REREG_MR:
      return rereg_mr(command);
    case IB_USER_VERBS_CMD_CREATE_AH:
      return create_ah(command);
    case IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL:
      return create_comp_channel(command);
    case IB_USER_VERBS_CMD_RESIZE_CQ:
      return resize_cq(command);
    case IB_USER_VERBS_CMD_MODIFY_SRQ:
      return modify_srq(command);
    case IB_USER_VERBS_CMD_QUERY_SRQ:
      return query_srq(command);
    case IB_USER_VERBS_CMD_MODIFY_QP:
    case IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_MODIFY_QP:
      return modify_qp(command);
    case IB_USER_VERBS_CMD_QUERY_QP:
      return query_qp(command);
    default:
      refuse(EOPNOTSUPP, "carry out a command", fmt::format("the software NIC has no command {:#x}", number));
  }
}

// --- registers --------------------------------------------------------------------------------

void Context::alloc_uar(Command& command) {
  const std::uint32_t page = nic().uars().allocate();
  if (page == UarPages::none) refuse(ENOMEM, "allocate registers", "all pages are in use");
  command.out<std::uint64_t>(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, std::uint64_t{256 + page} << 20);
  command.out<std::uint32_t>(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, uar_page_bytes);
  command.out<std::uint32_t>(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, page);
  command.out_number(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, keep(std::make_unique<UarObject>(nic(), page)));
}

void* Context::map(void* address, std::size_t bytes, int protection, int flags,
                   std::uint64_t offset) noexcept {
  std::uint64_t kind = offset >> 20;
  if (kind == MLX5_IB_MMAP_CLOCK_INFO && (offset >> 12 & 0xff) == MLX5_IB_CLOCK_INFO_V1)
    kind = 256 + UarPages::clock_page;
  if (kind < 256 || nic_ == nullptr || Nic::existing() != nic_) {
    errno = EINVAL;
    return MAP_FAILED;
  }
  const Nic::Command hold(*nic_);
  return nic_->uars().map(static_cast<std::uint32_t>(kind - 256), address, bytes, protection, flags);
}

}  // namespace pollen::soft::uverbs
