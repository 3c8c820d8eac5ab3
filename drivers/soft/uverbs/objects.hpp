// What a program has made of the device: the kernel's objects behind verbs handles.
//
// Each counts who uses it; while somebody does it can't be destroyed (EBUSY), as with the kernel.
// Thread rules: under the NIC's lock.
#pragma once

#include <rdma/ib_user_verbs.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "pollen/drivers/soft/engine.hpp"
#include "pollen/drivers/soft/soft_cq.hpp"
#include "pollen/drivers/soft/soft_qp.hpp"
#include "pollen/drivers/soft/soft_srq.hpp"
#include "pollen/drivers/soft/uverbs/event_queue.hpp"

namespace pollen::soft::uverbs {

class Nic;

struct Object {
  virtual ~Object() = default;
  std::uint32_t users = 0;
};

// Keeps an object in use.
template <typename T>
class Use {
 public:
  Use() = default;
  explicit Use(T* object) noexcept : object_(object) {
    if (object_ != nullptr) ++object_->users;
  }
  Use(Use&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Use& operator=(Use&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Use() {
    if (object_ != nullptr) --object_->users;
  }
  T* operator->() const noexcept { return object_; }
  T* get() const noexcept { return object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  T* object_ = nullptr;
};

// The events of one object in a queue, counted for its end.
struct EventSource {
  std::shared_ptr<EventQueue> queue;
  std::uint64_t object = 0;  // what the program calls it
  std::uint32_t sent = 0;

  // How many the program has read, for sure. Nothing comes after that.
  std::uint32_t end() {
    if (queue == nullptr) return 0;
    const std::uint32_t reported = sent - queue->take_back(object);
    queue = nullptr;
    return reported;
  }
  void async(std::uint32_t kind) {
    if (queue == nullptr) return;
    const ib_uverbs_async_event_desc event{object, kind, 0};
    queue->push(std::as_bytes(std::span(&event, 1)));
    ++sent;
  }
};

struct PdObject final : Object {
  explicit PdObject(std::uint32_t the_number) : number(the_number) {}
  const std::uint32_t number;
};

struct MrObject final : Object {
  MrObject(Nic& the_nic, PdObject* the_pd) : nic(the_nic), pd(the_pd) {}
  ~MrObject() override;

  Nic& nic;
  Use<PdObject> pd;
  std::uint32_t key = 0;
  std::span<std::byte> memory;
  std::uint64_t address = 0;  // as requests name it
  std::uint32_t access = 0;   // IB_ACCESS_…
};

struct AhObject final : Object {
  explicit AhObject(PdObject* the_pd) : pd(the_pd) {}
  Use<PdObject> pd;
};

struct UarObject final : Object {
  UarObject(Nic& the_nic, std::uint32_t the_page) : nic(the_nic), page(the_page) {}
  ~UarObject() override;
  Nic& nic;
  const std::uint32_t page;
};

// A completion queue and when it is to tell of completions. The program arms it with a number that
// goes up with every event that it reads: each number is good for one event.
struct CqObject final : Object, SoftCq {
  CqObject(Nic& the_nic, const CqMemory& memory, std::uint32_t the_page);
  ~CqObject() override;

  void take_arm() noexcept;
  bool arm_changed() const noexcept { return arm_record() != last_arm; }
  std::uint32_t arm_record() const noexcept;
  // Tells the program if it asked for it and there is something that it has not been told of.
  void notify();

  Nic& nic;
  const std::uint32_t uar_page;
  std::uint32_t number = 0;
  EventSource completions;
  EventSource async;
  bool overrun_told = false;
  bool armed = false;
  bool solicited_only = false;
  std::uint32_t last_arm = 0xffffffff;
  std::uint32_t armed_at = 0;     // the reader's index then
  std::uint32_t told_upto = 0;    // producer index at the last event
  std::uint32_t told_number = 4;  // the number that event was good for; 4: none yet
};

struct SrqObject final : Object, SoftSrq {
  SrqObject(PdObject* the_pd, const std::byte* wqes, std::uint32_t entries, std::uint32_t stride,
            const std::uint32_t* record)
      : SoftSrq(the_pd->number, wqes, entries, stride, record), pd_use(the_pd) {}

  Use<PdObject> pd_use;
  EventSource async;
  std::uint32_t number = 0;
  std::uint32_t max_wr = 0;
  std::uint32_t max_sge = 0;
};

// What the program has set, as a query gives it back.
struct QpAttributes {
  ib_uverbs_qp_dest dest{};
  ib_uverbs_qp_dest alt_dest{};
  std::uint32_t qkey = 0;
  std::uint32_t rq_psn = 0;
  std::uint32_t sq_psn = 0;
  std::uint32_t dest_qpn = 0;
  std::uint32_t access = 0;
  std::uint16_t pkey_index = 0;
  std::uint16_t alt_pkey_index = 0;
  std::uint8_t path_mtu = 0;
  std::uint8_t path_mig_state = 0;
  std::uint8_t max_rd_atomic = 0;
  std::uint8_t max_dest_rd_atomic = 0;
  std::uint8_t min_rnr_timer = 0;
  std::uint8_t port = 0;
  std::uint8_t timeout = 0;
  std::uint8_t retry_count = 0;
  std::uint8_t rnr_retry = 0;
  std::uint8_t alt_port = 0;
  std::uint8_t alt_timeout = 0;
};

struct QpObject final : Object, SoftQp {
  QpObject(Nic& the_nic, PdObject* the_pd, CqObject* the_send_cq, CqObject* the_recv_cq, SrqObject* the_srq,
           std::uint32_t the_page, driver::Transport the_transport, const QpMemory& memory);
  ~QpObject() override;

  Nic& nic;
  Use<PdObject> pd_use;
  Use<CqObject> send_cq_use;
  Use<CqObject> recv_cq_use;
  Use<SrqObject> srq_use;
  const std::uint32_t uar_page;
  EventSource async;
  ib_uverbs_qp_cap cap{};
  bool signal_all = false;
  QpAttributes attributes;
};

}  // namespace pollen::soft::uverbs
