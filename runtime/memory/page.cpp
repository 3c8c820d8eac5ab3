#include "pollen/memory/page.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

namespace pollen::memory {

namespace {

std::size_t transparent_page_bytes() noexcept {
  static const std::size_t bytes = [] {
    std::size_t value = 0;
    std::ifstream("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") >> value;
    const bool power_of_two = value != 0 && (value & (value - 1)) == 0;
    return power_of_two ? value : std::size_t{2} << 20;
  }();
  return bytes;
}

}  // namespace

std::string_view name(PageKind kind) noexcept {
  switch (kind) {
    case PageKind::huge_1g:
      return "1 GiB hugepages";
    case PageKind::huge_2m:
      return "2 MiB hugepages";
    case PageKind::transparent:
      return "transparent hugepages";
    case PageKind::plain:
      return "plain pages";
  }
  return "unknown pages";
}

std::size_t page_bytes(PageKind kind) noexcept {
  switch (kind) {
    case PageKind::huge_1g:
      return std::size_t{1} << 30;
    case PageKind::huge_2m:
      return std::size_t{2} << 20;
    case PageKind::transparent:
      return transparent_page_bytes();
    case PageKind::plain:
      break;
  }
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

std::string size_text(std::uint64_t bytes) {
  struct Unit {
    int shift;
    const char* text;
  };
  for (const Unit unit : {Unit{40, "TiB"}, Unit{30, "GiB"}, Unit{20, "MiB"}, Unit{10, "KiB"}}) {
    const std::uint64_t one = std::uint64_t{1} << unit.shift;
    if (bytes < one) continue;
    if (bytes % one == 0) return fmt::format("{} {}", bytes >> unit.shift, unit.text);
    return fmt::format("{:.1f} {}", static_cast<double>(bytes) / static_cast<double>(one), unit.text);
  }
  return bytes == 1 ? "1 byte" : fmt::format("{} bytes", bytes);
}

}  // namespace pollen::memory
