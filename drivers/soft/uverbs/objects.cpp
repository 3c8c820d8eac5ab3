#include "pollen/drivers/soft/uverbs/objects.hpp"

#include "pollen/drivers/soft/uverbs/nic.hpp"

namespace pollen::soft::uverbs {

MrObject::~MrObject() {
  if (key != 0) nic.regions().end(key);
}

UarObject::~UarObject() { nic.uars().free(page); }

CqObject::CqObject(Nic& the_nic, const CqMemory& memory, std::uint32_t the_page)
    : SoftCq(memory), nic(the_nic), uar_page(the_page), number(the_nic.next_number()) {
  // The program's first arming writes a 0, which is what is there: make it a change.
  __atomic_store_n(&ring_.record[1], 0xffffffffU, __ATOMIC_RELAXED);
  nic.add(*this);
}

CqObject::~CqObject() { nic.remove(*this); }

std::uint32_t CqObject::arm_record() const noexcept {
  return big_endian(__atomic_load_n(&ring_.record[1], __ATOMIC_ACQUIRE));
}

void CqObject::take_arm() noexcept {
  last_arm = arm_record();
  const std::uint32_t arm_number = last_arm >> 28 & 3;
  armed = arm_number != told_number;
  solicited_only = (last_arm & 1U << 24) != 0;
  armed_at = written() - ((written() - last_arm) & 0xffffff);
}

void CqObject::notify() {
  if (!armed || completions.queue == nullptr) return;
  const std::uint32_t last = solicited_only ? written_urgent() : written();
  const auto behind = [&](std::uint32_t index) { return static_cast<std::int32_t>(last - index) > 0; };
  if (!behind(armed_at) || !behind(told_upto)) return;
  armed = false;
  told_number = last_arm >> 28 & 3;
  told_upto = written();
  completions.queue->push(std::as_bytes(std::span(&completions.object, 1)));
  ++completions.sent;
}

QpObject::QpObject(Nic& the_nic, PdObject* the_pd, CqObject* the_send_cq, CqObject* the_recv_cq,
                   SrqObject* the_srq, std::uint32_t the_page, driver::Transport the_transport,
                   const QpMemory& memory)
    : SoftQp(the_nic.engine(), the_pd->number, *the_send_cq, *the_recv_cq, the_transport, memory),
      nic(the_nic),
      pd_use(the_pd),
      send_cq_use(the_send_cq),
      recv_cq_use(the_recv_cq),
      srq_use(the_srq),
      uar_page(the_page) {
  nic.add(*this);
}

QpObject::~QpObject() { nic.remove(*this); }

}  // namespace pollen::soft::uverbs
