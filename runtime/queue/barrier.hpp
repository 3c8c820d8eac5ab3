// Memory barriers between a core and a device that reads and writes the same memory by DMA.
// Compiler builtins such as std::atomic_thread_fence order cores among themselves; a device
// needs the outer-shareable domain on AArch64, and write-combining stores need sfence on x86.
// Each function says what it keeps apart from what.
#pragma once

#include <atomic>

namespace pollen::queue {

// Before the doorbell record is written: the device that sees the new index must also see the
// WQEs it covers. x86 keeps stores to ordinary memory in order, so only the compiler is held.
inline void wqes_before_record() noexcept {
#if defined(__aarch64__)
  asm volatile("dmb oshst" ::: "memory");
#elif defined(__x86_64__)
  std::atomic_signal_fence(std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// Before a store to the UAR: the device that takes the doorbell may read the record and the
// ring at once. The UAR is write-combining; such a store may pass earlier ordinary ones.
inline void record_before_uar() noexcept {
#if defined(__aarch64__)
  asm volatile("dmb oshst" ::: "memory");
#elif defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// After the stores to the UAR: pushes the write-combining buffer out, both for latency and
// because the other half of the register must not be overtaken by a later use of this one.
inline void flush_uar() noexcept {
#if defined(__aarch64__)
  asm volatile("dsb st" ::: "memory");
#elif defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// After the owner bit of a CQE was seen: the rest of the CQE, and the data that it announces,
// must not be read earlier. x86 does not reorder loads. Leaving this out is a bug on AArch64.
inline void owner_before_cqe() noexcept {
#if defined(__aarch64__)
  asm volatile("dmb oshld" ::: "memory");
#elif defined(__x86_64__)
  std::atomic_signal_fence(std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
}

// Before the CQ's consumer index is published: the device may overwrite the entries at once,
// so all loads from them must be done. x86 does not move a store before an earlier load.
inline void cqes_before_consumer_index() noexcept {
#if defined(__aarch64__)
  asm volatile("dmb osh" ::: "memory");
#elif defined(__x86_64__)
  std::atomic_signal_fence(std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace pollen::queue
