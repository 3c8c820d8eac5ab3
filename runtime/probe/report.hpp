// One lcore's numbers as JSON and as a row of a table. Each name carries its unit.
//
// Thread rules: pure functions of their arguments. Errors: none but std::bad_alloc.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "pollen/probe/counters.hpp"
#include "pollen/probe/histogram.hpp"
#include "pollen/probe/hw_counters.hpp"
#include "pollen/probe/preemption.hpp"
#include "pollen/probe/windows.hpp"

namespace pollen::probe {

struct LcoreReport {
  unsigned lcore = 0;
  CounterSnapshot counters;
  std::optional<PreemptionReport> preemption;
  HwReading hardware;           // absent parts are written as null
  std::string hardware_status;  // HwCounters::status()
};

nlohmann::json to_json(const CounterSnapshot& counters);
nlohmann::json to_json(const PreemptionReport& preemption);
nlohmann::json to_json(const HwReading& hardware, const std::string& status);
nlohmann::json to_json(const Histogram& histogram, const std::string& unit);
nlohmann::json to_json(const RateSeries& series);
nlohmann::json to_json(const LcoreReport& report);

// Columns of equal width in both; neither ends with a newline.
std::string table_header();
std::string table_row(const LcoreReport& report);

}  // namespace pollen::probe
