// Numbers with units, as people write them.
//
// Thread rules: pure functions. Errors: pollen::Error, EINVAL, quoting the text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pollen::bw {

// "4096", "64K", "1M", "2G": powers of 1024. 0 is a size, whether it makes sense is the caller's to say.
std::uint64_t parse_size(std::string_view text);

std::uint64_t parse_whole(std::string_view text);

// A number at the front of the text, which is moved behind it; nothing if there is none.
std::optional<double> take_number(std::string_view& text);

// What a rate is of. Units: bits per second, or messages per second.
struct Rate {
  double per_second = 0;
  bool of_messages = false;
};
// "10Gb/s", "1.2MiB/s", "4M/s", "4Mpps". A capital B is a byte, a small b a bit; k, M, G are powers of
// 1000, Ki, Mi, Gi of 1024. A number without a unit is refused.
Rate parse_rate(std::string_view text);
inline constexpr const char* rate_units =
    "b/s, B/s (with k, M, G, Ki, Mi or Gi before) or /s, K/s, M/s, Mpps";

}  // namespace pollen::bw
