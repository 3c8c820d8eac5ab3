// The kinds of page an arena can be made of, from the fewest TLB misses to the most.
//
// Thread rules: constants and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace pollen::memory {

// Ordered from largest to smallest: a < b means that a is the larger page.
enum class PageKind : std::uint8_t { huge_1g, huge_2m, transparent, plain };

inline constexpr std::array page_kinds{PageKind::huge_1g, PageKind::huge_2m, PageKind::transparent,
                                       PageKind::plain};

// "1 GiB hugepages", "2 MiB hugepages", "transparent hugepages", "plain pages".
std::string_view name(PageKind kind) noexcept;

// Size of one page of this kind. Plain and transparent pages differ between kernels.
std::size_t page_bytes(PageKind kind) noexcept;

// "4 MiB", "1.5 GiB", "100 bytes": what messages say about sizes.
std::string size_text(std::uint64_t bytes);

}  // namespace pollen::memory
