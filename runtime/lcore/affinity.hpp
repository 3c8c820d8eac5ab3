// The affinity mask of a thread, whatever the number of CPUs the kernel was built for.
//
// thread_id 0 is the calling thread. Errors: pollen::Error.
#pragma once

#include <sys/types.h>

#include "pollen/lcore/cpu_set.hpp"

namespace pollen::lcore {

CpuSet affinity(pid_t thread_id = 0);
void set_affinity(const CpuSet& cpus, pid_t thread_id = 0);

}  // namespace pollen::lcore
