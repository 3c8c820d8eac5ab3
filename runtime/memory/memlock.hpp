// Compares what is about to be pinned with what the process may pin, before the kernel refuses
// with a bare ENOMEM.
//
// Units: bytes. Thread rules: safe anywhere; control path only (reads /proc).
// Errors: pollen::Error that names limit, need and the command that raises the limit.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace pollen::memory {

struct MemlockStatus {
  std::optional<std::uint64_t> limit_bytes;  // none: unlimited
  std::uint64_t pinned_bytes = 0;            // registered by this process already
  bool privileged = false;                   // CAP_IPC_LOCK: the limit doesn't apply
};

MemlockStatus memlock_status();

// purpose completes "pin 64 MiB for …": "the receive rings of 4 workers".
void require_memlock(std::uint64_t planned_bytes, std::string_view purpose);

}  // namespace pollen::memory
