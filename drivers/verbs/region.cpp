// Memory registration.
#include <fmt/format.h>

#include <cerrno>

#include "pollen/base/error.hpp"
#include "pollen/drivers/verbs/device.hpp"

namespace pollen::verbs {

namespace {

using driver::Access;
using driver::allows;

class VerbsRegion final : public driver::Region {
 public:
  VerbsRegion(MrHandle handle, PdHandle pd) : pd_(std::move(pd)), handle_(std::move(handle)) {
    address_ = static_cast<std::byte*>(handle_->addr);
    bytes_ = handle_->length;
    lkey_ = handle_->lkey;
    rkey_ = handle_->rkey;
  }

 private:
  PdHandle pd_;
  MrHandle handle_;
};

}  // namespace

std::unique_ptr<driver::Region> VerbsPd::register_memory(std::span<std::byte> memory, Access access,
                                                         driver::SharedBacking) {
  const auto refuse = [&](int errnum, const char* why, const char* remedy) {
    throw Error(errnum, {.attempted = fmt::format("register {} bytes of memory", memory.size()),
                         .on = device_.info().name,
                         .why = why,
                         .remedy = remedy});
  };
  if (memory.empty()) refuse(EINVAL, "there is none", "Register a byte or more");
  const bool remote_change = allows(access, Access::remote_write) || allows(access, Access::remote_atomic);
  if (remote_change && !allows(access, Access::local_write))
    refuse(EINVAL, "remote write and remote atomic access need local write access, too",
           "Add Access::local_write");
  if (allows(access, Access::remote_invalidate))
    refuse(EOPNOTSUPP, "libibverbs lets peers end the keys of memory windows only",
           "Leave out Access::remote_invalidate");
  auto flags = static_cast<unsigned>(to_ibv_access(access));
  // A device without atomics refuses the flag; its peers get an access error either way.
  if (!device_.has_atomics()) flags &= ~unsigned{IBV_ACCESS_REMOTE_ATOMIC};
  MrHandle handle(ibv_reg_mr(handle_.get(), memory.data(), memory.size(), flags));
  if (handle == nullptr) {
    if (errno == EFAULT)
      refuse(EFAULT, "not all of it is mapped, or it is mapped read-only",
             "Register memory that the process may write");
    device_.context().fail(errno, fmt::format("register {} bytes of memory", memory.size()));
  }
  return std::make_unique<VerbsRegion>(std::move(handle), handle_);
}

}  // namespace pollen::verbs
