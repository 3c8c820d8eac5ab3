#include "pollen/drivers/soft/uverbs/command.hpp"

#include <algorithm>

namespace pollen::soft::uverbs {

void Command::out_bytes(std::uint16_t id, const void* value, std::size_t size) noexcept {
  ib_uverbs_attr* attribute = find(id);
  if (attribute == nullptr || attribute->len == 0) return;
  auto* to = reinterpret_cast<std::byte*>(attribute->data);
  const std::size_t part = std::min<std::size_t>(attribute->len, size);
  std::memcpy(to, value, part);
  std::memset(to + part, 0, attribute->len - part);
  attribute->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
}

}  // namespace pollen::soft::uverbs
