#include "pollen/lcore/idle.hpp"

namespace pollen::lcore {

std::optional<Idle> parse_idle(std::string_view name) {
  for (const Idle idle : {Idle::spin, Idle::pause, Idle::sleep}) {
    if (name == to_string(idle)) return idle;
  }
  return std::nullopt;
}

std::string_view to_string(Idle idle) {
  switch (idle) {
    case Idle::spin:
      return "spin";
    case Idle::pause:
      return "pause";
    case Idle::sleep:
      return "sleep";
  }
  return "unknown";
}

}  // namespace pollen::lcore
