// Per-lcore numbers in Prometheus' text exposition format, version 0.0.4: for a file that the node
// exporter collects, or for whoever serves it.
//
// Units: base units as Prometheus wants them (seconds, bytes), in the names.
// Thread rules: a pure function. Errors: none but std::bad_alloc.
#pragma once

#include <span>
#include <string>

#include "pollen/probe/report.hpp"

namespace pollen::probe {

std::string prometheus_text(std::span<const LcoreReport> reports);

}  // namespace pollen::probe
