// One command of the uverbs ioctl interface: its attributes, checked, in and out.
//
// An attribute of at most 8 bytes that goes in lies in the attribute itself; a longer one, and all
// that come out, where it points. What the program left out or made too short reads as zeros, and
// what does not fit is cut, as the kernel does it for those that know a longer structure.
#pragma once

#include <rdma/rdma_user_ioctl_cmds.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace pollen::soft::uverbs {

class Command {
 public:
  explicit Command(ib_uverbs_ioctl_hdr& header) noexcept : header_(header) {}

  std::uint16_t object() const noexcept { return header_.object_id; }
  std::uint16_t method() const noexcept { return header_.method_id; }
  bool has(std::uint16_t id) const noexcept { return find(id) != nullptr; }

  template <typename T>
  T in(std::uint16_t id) const noexcept {
    T value{};
    if (const ib_uverbs_attr* attribute = find(id); attribute != nullptr)
      std::memcpy(&value, data_in(*attribute), std::min<std::size_t>(attribute->len, sizeof value));
    return value;
  }
  std::size_t bytes(std::uint16_t id) const noexcept {
    const ib_uverbs_attr* attribute = find(id);
    return attribute == nullptr ? 0 : attribute->len;
  }
  // Constants and object numbers, which have no length.
  std::uint64_t number(std::uint16_t id) const noexcept {
    const ib_uverbs_attr* attribute = find(id);
    return attribute == nullptr ? 0 : attribute->data;
  }
  std::span<const std::byte> raw_in(std::uint16_t id) const noexcept {
    const ib_uverbs_attr* attribute = find(id);
    if (attribute == nullptr) return {};
    return {data_in(*attribute), attribute->len};
  }

  template <typename T>
  void out(std::uint16_t id, const T& value) noexcept {
    out_bytes(id, &value, sizeof value);
  }
  void out_bytes(std::uint16_t id, const void* value, std::size_t size) noexcept;
  void out_number(std::uint16_t id, std::uint64_t value) noexcept {
    if (ib_uverbs_attr* attribute = find(id); attribute != nullptr) {
      attribute->data = value;
      attribute->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
    }
  }

 private:
  ib_uverbs_attr* find(std::uint16_t id) const noexcept {
    for (std::uint16_t i = 0; i < header_.num_attrs; ++i)
      if (header_.attrs[i].attr_id == id) return &header_.attrs[i];
    return nullptr;
  }
  static const std::byte* data_in(const ib_uverbs_attr& attribute) noexcept {
    if (attribute.len <= sizeof attribute.data) return reinterpret_cast<const std::byte*>(&attribute.data);
    return reinterpret_cast<const std::byte*>(attribute.data);
  }

  ib_uverbs_ioctl_hdr& header_;
};

}  // namespace pollen::soft::uverbs
