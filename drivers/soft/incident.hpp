// What a device tells of its queues besides completions. The program's front may listen
// (drivers/soft/uverbs); the embedded NIC's users have driver::Event.
//
// Called in the middle of a turn, by the engine's thread: take note, act later.
#pragma once

#include <cstdint>

namespace pollen::soft {

class SoftQp;
class SoftCq;
class SoftSrq;

enum class QpIncident : std::uint8_t {
  request_refused,  // a peer's request made no sense; the QP is broken
  access_refused,   // a peer's request named memory that it may not have; the QP is broken
  broken,           // by its completion queue
  established,      // the first packet came before the move to RTS
  last_buffer,      // in the error state it takes no more from its shared receive queue
};

class IncidentListener {
 public:
  virtual ~IncidentListener() = default;
  virtual void on_incident(SoftQp& qp, QpIncident incident) noexcept = 0;
  virtual void on_overrun(SoftCq& cq) noexcept = 0;
  virtual void on_limit(SoftSrq& srq) noexcept = 0;
};

}  // namespace pollen::soft
