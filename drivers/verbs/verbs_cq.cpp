#include "pollen/drivers/verbs/verbs_cq.hpp"

#include <fmt/format.h>

#include <cerrno>

#include "pollen/drivers/verbs/verbs_port.hpp"

namespace pollen::verbs {

VerbsCq::VerbsCq(VerbsPort& port, std::uint32_t entries) : port_(port), memory_(entries) {
  for (Entry& cqe : memory_) cqe.op_own = queue::cqe_never_written;
  ring_ = {reinterpret_cast<std::byte*>(memory_.data()), entries, &record_};
  handle_.reset(
      ibv_create_cq(port.device().context().get(), static_cast<int>(entries), &port, port.channel(), 0));
  if (handle_ == nullptr)
    port.device().context().fail(errno, fmt::format("create a completion queue of {} entries", entries),
                                 errno == ENOMEM ? "" : "Ask for fewer entries");
  port.add(*this);
}

VerbsCq::~VerbsCq() { port_.remove(*this); }

void VerbsCq::report_overrun() noexcept {
  if (overrun_) return;
  overrun_ = true;
  port_.report_overrun(*this);
}

}  // namespace pollen::verbs
