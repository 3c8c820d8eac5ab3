// Big-endian fields, as the NIC and the wire have them. A value in network order is kept in
// its own type only where it is stored; everything else is host order.
#pragma once

#include <bit>
#include <cstdint>

namespace pollen {

template <typename T>
constexpr T swap_bytes(T v) noexcept {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 2) return static_cast<T>(__builtin_bswap16(static_cast<std::uint16_t>(v)));
  if constexpr (sizeof(T) == 4) return static_cast<T>(__builtin_bswap32(static_cast<std::uint32_t>(v)));
  if constexpr (sizeof(T) == 8) return static_cast<T>(__builtin_bswap64(static_cast<std::uint64_t>(v)));
}

// Host to big-endian and back: the same operation.
template <typename T>
constexpr T big_endian(T v) noexcept {
  if constexpr (std::endian::native == std::endian::little) return swap_bytes(v);
  return v;
}

}  // namespace pollen
