// What stands between the chosen lcores and undisturbed polling, each finding with its fix. Said once
// at start; --strict turns findings into an error.
//
// Thread rules: values. Errors: enforce() throws pollen::Error, find_advice() nothing.
#pragma once

#include <optional>
#include <vector>

#include "pollen/lcore/machine.hpp"
#include "pollen/lcore/plan.hpp"

namespace pollen::lcore {

// plan.lcores must be filled in. device_node: where the device is, if known.
std::vector<Advice> find_advice(const Machine& machine, const Plan& plan,
                                std::optional<unsigned> device_node);

// Throws an Error that lists every finding and fix, if strict and there are any.
void enforce(const std::vector<Advice>& advice, bool strict);

}  // namespace pollen::lcore
