// What the tests of this directory make workers of.
#pragma once

#include <array>
#include <string>

#include "fake_device.hpp"
#include "pollen/worker/worker.hpp"

namespace pollen::worker {

inline WorkerOptions small_worker() {
  WorkerOptions options;
  options.arena_bytes = 64 << 10;
  options.largest_page = memory::PageKind::plain;
  options.send_cq_entries = 256;
  options.recv_cq_entries = 256;
  options.drain_ns = 10'000'000'000;
  return options;
}

inline fake::Port& fake_port(Worker& worker) { return dynamic_cast<fake::Port&>(worker.port()); }
inline fake::Qp& fake_qp(queue::Qp& qp) { return dynamic_cast<fake::Qp&>(qp.control()); }

inline queue::Sge sge(Worker& worker, std::uint32_t bytes = 64) {
  return {.address = worker.arena().base(), .bytes = bytes, .lkey = worker.region().lkey()};
}

// Posts without ringing. Signalled: the queue then adds no request of its own.
inline bool stage(Worker& worker, Qp& qp, std::uint64_t wr_id = 0) {
  auto burst = qp.send_burst();
  const bool posted = burst.send(sge(worker), {.wr_id = wr_id, .signal = true});
  burst.defer();
  return posted;
}

template <typename Attempt>
std::string error_of(Attempt&& attempt) {
  try {
    attempt();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace pollen::worker
