// What the preload library is told, by environment variables, as it has no command line:
//
//   SOFTMLX5_DEVICE=N        0 to 7: which of the software NIC's devices mlx5_0 is (default 0)
//   SOFTMLX5_FAULTS=TEXT     as --soft-faults (drivers/soft/faults.hpp)
//   SOFTMLX5_PCAP=FILE       writes what is sent; %p stands for the process's number
//   SOFTMLX5_SPIN_TURNS=N    idle turns before the device's thread sleeps
//   POLLEN_SHM_DIR           where the shared memory goes
#pragma once

#include <cstdint>
#include <optional>

#include "pollen/drivers/soft/options.hpp"

namespace pollen::soft::uverbs {

struct Options {
  std::uint32_t device = 0;
  std::optional<std::uint32_t> spin_turns;
  SoftOptions soft;

  // Read once per process. Throws Error that names the variable.
  static const Options& get();
};

}  // namespace pollen::soft::uverbs
