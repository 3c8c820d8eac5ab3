// The lcores of a process, held from the choice on: no other can choose the same while this one waits for
// its peer.
//
// Thread rules: the main thread, before workers start. Errors: pollen::Error.
#pragma once

#include <optional>
#include <vector>

#include "pollen/lcore/lock.hpp"
#include "pollen/lcore/machine.hpp"
#include "pollen/lcore/options.hpp"
#include "pollen/lcore/plan.hpp"

namespace pollen::bw {

class Cores {
 public:
  Cores(const lcore::LcoreOptions& options, int device_node)
      : options_(options), machine_(lcore::Machine::read()) {
    if (device_node >= 0) node_ = static_cast<unsigned>(device_node);
  }

  void choose(unsigned count) {
    if (plan_ && plan_->lcores.size() == count) return;
    locks_.clear();
    plan_ = lcore::make_plan(machine_, {.lcores = options_.lcores,
                                        .node = node_,
                                        .max_workers = count,
                                        .taken = options_.lcores ? lcore::CpuSet{} : lcore::held_lcores()});
    for (const lcore::Lcore& one : plan_->lcores) locks_.emplace_back(one.cpu);
  }
  const lcore::Plan& plan() const { return *plan_; }

 private:
  const lcore::LcoreOptions& options_;
  lcore::Machine machine_;
  std::optional<unsigned> node_;
  std::optional<lcore::Plan> plan_;
  std::vector<lcore::LcoreLock> locks_;
};

}  // namespace pollen::bw
