// What the software NIC can be told. Everything has a default that works.
#pragma once

#include <cstdint>
#include <string>

#include "pollen/drivers/soft/faults.hpp"

namespace pollen::soft {

enum class Wire : std::uint8_t {
  shared_memory,  // reaches every process of this user on this host
  in_process,     // reaches the engines of this process only; leaves nothing outside
};

struct SoftOptions {
  Wire wire = Wire::shared_memory;
  // Where the shared memory files go. Empty: POLLEN_SHM_DIR, else /dev/shm/pollen-<uid>.
  std::string shm_dir = {};
  FaultConfig faults = {};
  std::string pcap_path = {};  // empty: no capture
  bool copy_payloads = false;  // never hand memory over by reference, as between two hosts
};

}  // namespace pollen::soft
