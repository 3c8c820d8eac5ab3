// Address handles by the path half of a UD WQE's address vector, made when one is first seen.
// It belongs to its port's thread.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pollen/drivers/driver.hpp"
#include "pollen/drivers/verbs/handles.hpp"
#include "pollen/queue/work_request.hpp"

namespace pollen::verbs {

// The segment as mlx5 has it. link_layer says whether the path needs a GRH in any case.
queue::DatagramSegment address_segment(const driver::PathConfig& path, std::uint32_t qpn, std::uint32_t qkey,
                                       bool global) noexcept;

// The other way. Also used for connected QPs.
ibv_ah_attr address_attributes(const queue::DatagramSegment& segment, std::uint8_t port) noexcept;

class AddressCache {
 public:
  explicit AddressCache(std::uint8_t port) : port_(port) {}
  ~AddressCache();
  AddressCache(const AddressCache&) = delete;
  AddressCache& operator=(const AddressCache&) = delete;

  // Null: the device refused, errno says why. Only a path's first use allocates. The domain is kept
  // for as long as its handles are.
  ibv_ah* find(const PdHandle& pd, const queue::DatagramSegment& segment) noexcept;

 private:
  static constexpr std::size_t path_begin = offsetof(mlx5_wqe_av, stat_rate_sl);
  using Path = std::array<std::byte, sizeof(mlx5_wqe_av) - path_begin>;

  struct Entry {
    ibv_pd* pd = nullptr;
    Path path;
    ibv_ah* handle = nullptr;
  };

  static std::size_t home(ibv_pd* pd, const Path& path) noexcept;
  void place(const Entry& entry) noexcept;
  void grow();

  std::uint8_t port_;
  std::vector<PdHandle> pds_;  // of the handles; ends after them
  std::vector<Entry> table_;   // open addressing, a power of two, at most half full
  std::size_t used_ = 0;
  Entry* recent_ = nullptr;
};

}  // namespace pollen::verbs
