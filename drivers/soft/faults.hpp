// Faults of a wire, from a seed: which packets are lost, doubled, overtaken, late or damaged.
//
// What happens to the n-th packet of a stream is a function of the seed, the stream and n alone. So
// a run replays exactly however its threads are timed, as long as streams are numbered alike and
// whoever sends on one counts its packets.
//
// As text (--soft-faults), in any order, each key at most once:
//
//   loss=P           the packet vanishes
//   dup=P            it arrives twice
//   reorder=P[:N]    1 to N of the stream's next packets overtake it (N = 3, at most 1024)
//   delay=[P:]TIME   it is late by TIME (ns, us, ms or s; at most 10 s); without P every packet is
//   corrupt=P        one bit of it is flipped
//   seed=N           a number from 0 to 2^64 - 1 (default 1)
//
// P is a probability from 0 to 1: 0.001 or 1e-3. Example: loss=1e-3,reorder=0.01:8,delay=0.1:50us,seed=7
//
// Thread rules: a FaultModel doesn't change, any thread may ask it. FaultStatistics belongs to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace pollen::soft {

struct FaultConfig {
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;
  std::uint32_t reorder_packets = 3;
  double delay = 0;
  std::uint64_t delay_ns = 0;
  double corrupt = 0;
  std::uint64_t seed = 1;

  bool any() const noexcept {
    return loss > 0 || duplicate > 0 || reorder > 0 || (delay > 0 && delay_ns > 0) || corrupt > 0;
  }
  bool operator==(const FaultConfig&) const = default;
};

// Throws Error(EINVAL) that names the part it does not understand and lists the keys.
FaultConfig parse_faults(std::string_view text);
// What parse_faults reads back; for the label of a run. "none" when there are no faults.
std::string to_string(const FaultConfig& config);

struct Decision {
  bool drop = false;       // then nothing else
  bool duplicate = false;  // an undamaged copy follows right behind it, with its delay and place
  std::optional<std::uint32_t> corrupt_bit = {};  // for flip_bit
  std::uint32_t hold_packets = 0;  // keep it until so many later packets of the stream have passed;
                                   // a stream that falls silent must let it go all the same
  std::uint64_t delay_ns = 0;

  bool operator==(const Decision&) const = default;
};

class FaultModel {
 public:
  explicit FaultModel(const FaultConfig& config) noexcept : config_(config) {}

  const FaultConfig& config() const noexcept { return config_; }
  Decision decide(std::uint64_t stream, std::uint64_t n) const noexcept;

 private:
  FaultConfig config_;
};

// Flips bit `bit` modulo the number of bits; nothing when there are no bytes.
void flip_bit(std::span<std::byte> bytes, std::uint32_t bit) noexcept;

struct FaultStatistics {
  std::uint64_t packets = 0;
  std::uint64_t dropped = 0;
  std::uint64_t duplicated = 0;
  std::uint64_t corrupted = 0;
  std::uint64_t reordered = 0;
  std::uint64_t delayed = 0;

  void count(const Decision& decision) noexcept;
  FaultStatistics& operator+=(const FaultStatistics& other) noexcept;
};

}  // namespace pollen::soft
