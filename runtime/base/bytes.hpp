// Big-endian fields, as the NIC and the wire have them. A value in network order is kept in
// its own type only where it is stored; everything else is host order.
#pragma once

#include <bit>
#include <cstdint>

namespace pollen {

constexpr std::uint16_t swap_bytes(std::uint16_t v) noexcept { return __builtin_bswap16(v); }
constexpr std::uint32_t swap_bytes(std::uint32_t v) noexcept { return __builtin_bswap32(v); }
constexpr std::uint64_t swap_bytes(std::uint64_t v) noexcept { return __builtin_bswap64(v); }

// Host to big-endian and back: the same operation.
template <typename T>
constexpr T big_endian(T v) noexcept {
  if constexpr (std::endian::native == std::endian::little) return swap_bytes(v);
  return v;
}

}  // namespace pollen
