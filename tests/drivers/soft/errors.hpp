// What the suites of refused requests share.
#pragma once

#include <string>

#include "raw_rig.hpp"

namespace rig {

using driver::Access;
using driver::QpState;

using Post = std::function<bool(queue::SendBurst&)>;

// Posts it on a's QP, and gives the first completion's status, which has to come.
inline Status outcome(Pair& pair, const Post& post) {
  const std::size_t before = pair.a.sent.size();
  {
    auto burst = pair.a.qp().send_burst();
    REQUIRE(post(burst));
  }
  REQUIRE(pair.until([&] { return pair.a.sent.size() > before; }));
  return pair.a.sent[before].status;
}

struct Operation {
  const char* name;
  std::function<bool(queue::SendBurst&, Sge, queue::Remote)> post;
  Access needs;
};

inline const Operation remote_operations[] = {
    {"WRITE", [](auto& burst, Sge local, queue::Remote to) { return burst.write(local, to); },
     Access::remote_write},
    {"WRITE_WITH_IMM",
     [](auto& burst, Sge local, queue::Remote to) { return burst.write_with_imm(local, to, 1); },
     Access::remote_write},
    {"READ", [](auto& burst, Sge local, queue::Remote to) { return burst.read(local, to); },
     Access::remote_read},
    {"FETCH_ADD", [](auto& burst, Sge local, queue::Remote to) { return burst.fetch_add(local, to, 1); },
     Access::remote_atomic},
    {"CMP_SWAP", [](auto& burst, Sge local, queue::Remote to) { return burst.cmp_swap(local, to, 0, 1); },
     Access::remote_atomic},
};

inline bool is_zero(const End& end, std::size_t offset, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i)
    if (end.memory[offset + i] != std::byte{0}) return false;
  return true;
}

inline bool says(const std::vector<driver::Event>& events, driver::Event::Kind kind, std::uint32_t number,
                 const char* words) {
  for (const auto& event : events)
    if (event.kind == kind && event.number == number && event.text.find(words) != std::string::npos)
      return true;
  return false;
}

}  // namespace rig
