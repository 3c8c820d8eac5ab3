#include "pollen/drivers/verbs/address_cache.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace pollen::verbs {

namespace {

constexpr std::uint32_t grh_present = 1U << 30;
constexpr std::uint32_t extended_vector = 1U << 31;

}  // namespace

queue::DatagramSegment address_segment(const driver::PathConfig& path, std::uint32_t qpn, std::uint32_t qkey,
                                       bool global) noexcept {
  queue::DatagramSegment segment{};
  mlx5_wqe_av& av = segment.av;
  av.key.qkey.qkey = big_endian(qkey);
  av.dqp_dct = big_endian(qpn | extended_vector);
  av.stat_rate_sl = path.service_level & 0xf;
  av.rlid = big_endian(path.remote_lid);
  av.tclass = path.traffic_class;
  av.hop_limit = path.hop_limit;
  if (global) {
    av.grh_gid_fl = big_endian(grh_present | (path.local_gid_index & 0xff) << 20);
    std::memcpy(av.rgid, path.remote_gid.bytes.data(), sizeof av.rgid);
  }
  return segment;
}

ibv_ah_attr address_attributes(const queue::DatagramSegment& segment, std::uint8_t port) noexcept {
  const mlx5_wqe_av& av = segment.av;
  const std::uint32_t grh = big_endian(av.grh_gid_fl);
  ibv_ah_attr attributes{};
  attributes.port_num = port;
  attributes.dlid = big_endian(av.rlid);
  attributes.sl = av.stat_rate_sl & 0xf;
  attributes.static_rate = av.stat_rate_sl >> 4;
  attributes.src_path_bits = av.fl_mlid & 0x7f;
  if ((grh & grh_present) != 0) {
    attributes.is_global = 1;
    attributes.grh.flow_label = grh & 0xfffff;
    attributes.grh.sgid_index = static_cast<std::uint8_t>(grh >> 20);
    attributes.grh.hop_limit = av.hop_limit;
    attributes.grh.traffic_class = av.tclass;
    std::memcpy(attributes.grh.dgid.raw, av.rgid, sizeof av.rgid);
  }
  return attributes;
}

AddressCache::~AddressCache() {
  for (Entry& entry : table_)
    if (entry.handle != nullptr) ibv_destroy_ah(entry.handle);
}

std::size_t AddressCache::home(ibv_pd* pd, const Path& path) noexcept {
  std::uint64_t hash = reinterpret_cast<std::uintptr_t>(pd);
  for (std::size_t i = 0; i < path.size(); i += 4) {
    std::uint32_t word;
    std::memcpy(&word, path.data() + i, sizeof word);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return static_cast<std::size_t>(hash);
}

void AddressCache::place(const Entry& entry) noexcept {
  std::size_t at = home(entry.pd, entry.path) & (table_.size() - 1);
  while (table_[at].handle != nullptr) at = (at + 1) & (table_.size() - 1);
  table_[at] = entry;
}

void AddressCache::grow() {
  std::vector<Entry> old(std::max<std::size_t>(16, table_.size() * 2));
  old.swap(table_);
  for (const Entry& entry : old)
    if (entry.handle != nullptr) place(entry);
}

ibv_ah* AddressCache::find(const PdHandle& pd, const queue::DatagramSegment& segment) noexcept {
  Path path;
  std::memcpy(path.data(), reinterpret_cast<const std::byte*>(&segment) + path_begin, path.size());
  if (recent_ != nullptr && recent_->pd == pd.get() && recent_->path == path) return recent_->handle;
  try {
    if ((used_ + 1) * 2 > table_.size()) {
      recent_ = nullptr;
      grow();
    }
    const std::size_t mask = table_.size() - 1;
    std::size_t at = home(pd.get(), path) & mask;
    for (; table_[at].handle != nullptr; at = (at + 1) & mask)
      if (table_[at].pd == pd.get() && table_[at].path == path) {
        recent_ = &table_[at];
        return recent_->handle;
      }
    if (std::find(pds_.begin(), pds_.end(), pd) == pds_.end()) pds_.push_back(pd);
    ibv_ah_attr attributes = address_attributes(segment, port_);
    ibv_ah* handle = ibv_create_ah(pd.get(), &attributes);
    if (handle == nullptr) return nullptr;
    table_[at] = {pd.get(), path, handle};
    ++used_;
    recent_ = &table_[at];
    return handle;
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return nullptr;
  }
}

}  // namespace pollen::verbs
