// What the probe itself costs, measured on this machine.
//
// Units: nanoseconds per turn of the loop. Thread rules: safe anywhere; takes about 100 ms.
// Errors: none.
#pragma once

namespace pollen::probe {

struct SelfCost {
  // A turn with every counter of counters.hpp added to, all laps of a TurnTimer and the
  // preemption detector, less a turn with none of them. The loop's own TSC read is in neither.
  double turn_ns = 0;
  double reading_ns = 0;  // one look at the preemption clocks; every few ms, and at gaps
};

SelfCost measure_self_cost();

}  // namespace pollen::probe
