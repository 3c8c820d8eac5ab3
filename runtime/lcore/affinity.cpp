#include "pollen/lcore/affinity.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <cerrno>
#include <memory>

#include "pollen/base/error.hpp"

namespace pollen::lcore {

namespace {

struct Mask {
  explicit Mask(std::size_t cpus) : bits(CPU_ALLOC(cpus)), bytes(CPU_ALLOC_SIZE(cpus)) {
    if (!bits) throw std::bad_alloc();
    CPU_ZERO_S(bytes, bits.get());
  }
  struct Free {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
  };
  std::unique_ptr<cpu_set_t, Free> bits;
  std::size_t bytes;
};

}  // namespace

CpuSet affinity(pid_t thread_id) {
  // The kernel answers EINVAL while the mask is shorter than its own, and tells its size nowhere.
  for (std::size_t cpus = 1024; cpus <= CpuSet::limit; cpus *= 2) {
    const Mask mask(cpus);
    if (sched_getaffinity(thread_id, mask.bytes, mask.bits.get()) == 0) {
      CpuSet out;
      for (unsigned cpu = 0; cpu < cpus; ++cpu) {
        if (CPU_ISSET_S(cpu, mask.bytes, mask.bits.get())) out.add(cpu);
      }
      return out;
    }
    if (errno != EINVAL) break;
  }
  throw Error(errno, {.attempted = "read the affinity mask", .on = fmt::format("thread {}", thread_id)});
}

void set_affinity(const CpuSet& cpus, pid_t thread_id) {
  const Mask mask(CpuSet::limit);
  for (const unsigned cpu : cpus) CPU_SET_S(cpu, mask.bytes, mask.bits.get());
  if (sched_setaffinity(thread_id, mask.bytes, mask.bits.get()) != 0) {
    const int errnum = errno;
    throw Error(errnum, {.attempted = fmt::format("pin a thread to {}", lcores_text(cpus)),
                         .why = errnum == EINVAL ? "the kernel allows it none of them" : ""});
  }
}

}  // namespace pollen::lcore
