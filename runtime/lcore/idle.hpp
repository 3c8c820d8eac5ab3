// What a worker does when a turn of its loop found nothing.
#pragma once

#include <optional>
#include <string_view>

namespace pollen::lcore {

enum class Idle {
  spin,   // look again at once: least latency, and the core looks fully busy to everyone else
  pause,  // look again after a pause instruction: gives an SMT sibling the core's resources
  sleep,  // arm the completion queue and wait in epoll: gives the core away, costs a wake-up
};

std::optional<Idle> parse_idle(std::string_view name);
std::string_view to_string(Idle idle);

}  // namespace pollen::lcore
