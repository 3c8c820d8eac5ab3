// Numbers that the device shows in more than one place.
#pragma once

#include <cstdint>

#include "pollen/base/bytes.hpp"

namespace pollen::soft::uverbs::facts {

inline constexpr std::uint32_t vendor_id = 0x2c9;
inline constexpr std::uint32_t part_id = 0x1017;  // ConnectX-5
inline constexpr std::uint32_t max_wrs = 32768;
inline constexpr std::uint32_t max_cqes = 1 << 22;
inline constexpr std::uint32_t max_sge = 30;
inline constexpr std::uint16_t max_send_wqe_bytes = 1008;  // 63 segments
inline constexpr std::uint16_t max_recv_wqe_bytes = 512;
inline constexpr std::uint32_t max_message_bytes = 1U << 30;
inline constexpr std::uint32_t port_cap_flags = 1U << 26 | 1U << 16;  // IP-based GIDs, a connection manager
// 16.0.0: a version that no firmware has had.
inline constexpr std::uint64_t firmware = std::uint64_t{16} << 32;

inline std::uint64_t node_guid(std::uint32_t device) noexcept {
  return big_endian(std::uint64_t{0x02706cff'fe6e0000} + device + 1);
}

}  // namespace pollen::soft::uverbs::facts
