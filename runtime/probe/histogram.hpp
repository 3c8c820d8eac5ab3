// A streaming histogram of unsigned numbers (nanoseconds, bytes, cycles) in fixed memory.
//
// Buckets are logarithmic, and each power of two is cut into 128 linear parts: values below 256
// are kept exactly, larger ones to within relative_error. Count, minimum, maximum, mean and
// standard deviation don't come from the buckets and are exact.
//
// Units: the caller's. Memory: 57 KiB, allocated at construction. Thread rules: owner only.
// Errors: record() and merge() are noexcept; percentile() of an empty histogram is 0.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace pollen::probe {

class Histogram {
 public:
  // A percentile differs from a value that was recorded by at most this part of it.
  static constexpr double relative_error = 1.0 / 256;

  Histogram() : buckets_(bucket_count) {}

  void record(std::uint64_t value) noexcept {
    ++buckets_[index_of(value)];
    ++count_;
    min_ = std::min(min_, value);
    max_ = std::max(max_, value);
    // Welford: stays exact where a sum of squares would lose what matters.
    const double delta = static_cast<double>(value) - mean_;
    mean_ += delta / static_cast<double>(count_);
    squares_ += delta * (static_cast<double>(value) - mean_);
  }

  void merge(const Histogram& other) noexcept {
    if (other.count_ == 0) return;
    for (std::size_t i = 0; i < bucket_count; ++i) buckets_[i] += other.buckets_[i];
    const auto mine = static_cast<double>(count_);
    const auto theirs = static_cast<double>(other.count_);
    const double delta = other.mean_ - mean_;
    mean_ += delta * theirs / (mine + theirs);
    squares_ += other.squares_ + delta * delta * mine * theirs / (mine + theirs);
    count_ += other.count_;
    min_ = std::min(min_, other.min_);
    max_ = std::max(max_, other.max_);
  }

  void reset() noexcept {
    std::fill(buckets_.begin(), buckets_.end(), 0);
    count_ = 0;
    min_ = std::numeric_limits<std::uint64_t>::max();
    max_ = 0;
    mean_ = 0;
    squares_ = 0;
  }

  std::uint64_t count() const noexcept { return count_; }
  std::uint64_t min() const noexcept { return count_ == 0 ? 0 : min_; }
  std::uint64_t max() const noexcept { return max_; }
  double mean() const noexcept { return mean_; }
  // Of the population, not of a sample of it.
  double stddev() const noexcept {
    return count_ == 0 ? 0 : std::sqrt(squares_ / static_cast<double>(count_));
  }

  // The value that percent of the recorded values don't exceed; percent from 0 to 100.
  std::uint64_t percentile(double percent) const noexcept {
    if (count_ == 0) return 0;
    const double wanted = std::ceil(std::clamp(percent, 0.0, 100.0) / 100 * static_cast<double>(count_));
    const auto rank = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1, count_);
    if (rank == count_) return max_;
    if (rank == 1) return min_;
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < bucket_count; ++i) {
      seen += buckets_[i];
      if (seen >= rank) return std::clamp(middle_of(i), min_, max_);
    }
    return max_;
  }

 private:
  static constexpr unsigned part_bits = 7;  // 128 parts per power of two
  static constexpr std::size_t parts = std::size_t{1} << part_bits;
  static constexpr std::size_t bucket_count = parts * (64 - part_bits + 1);

  static std::size_t index_of(std::uint64_t value) noexcept {
    if (value < parts) return value;
    const auto octave = static_cast<unsigned>(std::bit_width(value)) - 1 - part_bits;
    return parts * octave + static_cast<std::size_t>(value >> octave);
  }

  static std::uint64_t middle_of(std::size_t index) noexcept {
    if (index < 2 * parts) return index;
    const auto octave = static_cast<unsigned>(index / parts - 1);
    const std::uint64_t low = (index - parts * octave) << octave;
    return low + (std::uint64_t{1} << octave) / 2;
  }

  std::vector<std::uint64_t> buckets_;
  std::uint64_t count_ = 0;
  std::uint64_t min_ = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t max_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // sum of the squared differences from the mean
};

}  // namespace pollen::probe
