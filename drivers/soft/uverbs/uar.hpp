// The device's registers: pages that programs write doorbells to. Each page is mapped twice, here
// and in the program, so the program may unmap its own whenever it likes.
//
//   0x020  completion queue to arm: sn:2 (bits 29:28) kind:1 (24) consumer:24, then the CQ's number
//   0x800  four registers of 256 bytes, two pairs: the last WQE's first 8 bytes, or a whole WQE
//
// A register is set back to zero when it was read; a doorbell is never zero, as queues and QPs have
// no number 0. Two writes to one register between two readings look like one: whoever reads must
// therefore look at every queue that shares the page.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pollen::soft::uverbs {

inline constexpr std::uint32_t uar_page_bytes = 4096;

class UarPages {
 public:
  // Throws Error.
  UarPages();
  ~UarPages();
  UarPages(const UarPages&) = delete;
  UarPages& operator=(const UarPages&) = delete;

  static constexpr std::uint32_t none = 0xffffffff;
  std::uint32_t allocate() noexcept;  // none: all are in use
  void free(std::uint32_t page) noexcept;

  // Page 0 is no register: it tells how timestamps, which are CLOCK_MONOTONIC in ns, become
  // CLOCK_REALTIME.
  static constexpr std::uint32_t clock_page = 0;

  // Maps a page for the program, where it wants it; MAP_FAILED with errno otherwise.
  void* map(std::uint32_t page, void* address, std::size_t bytes, int protection, int flags) noexcept;

  // on_send(page, qpn), on_arm(page, cqn). True when there was any.
  template <typename Send, typename Arm>
  bool poll(Send&& on_send, Arm&& on_arm) noexcept {
    bool any = false;
    for (const std::uint32_t page : used_) {
      if (const std::uint64_t rung = read(page, arm_offset); rung != 0) [[unlikely]] {
        on_arm(page, second_word(rung) & 0xffffff);
        any = true;
      }
      for (std::uint32_t i = 0; i < 4; ++i)
        if (const std::uint64_t rung = read(page, send_offset + i * 256); rung != 0) {
          on_send(page, second_word(rung) >> 8);
          any = true;
        }
    }
    return any;
  }

 private:
  static constexpr std::uint32_t max_pages = 4096;
  static constexpr std::uint32_t arm_offset = 0x20;
  static constexpr std::uint32_t send_offset = 0x800;

  std::uint64_t read(std::uint32_t page, std::uint32_t offset) noexcept {
    std::atomic_ref<std::uint64_t> reg(
        *reinterpret_cast<std::uint64_t*>(memory_ + std::size_t{page} * uar_page_bytes + offset));
    if (reg.load(std::memory_order_relaxed) == 0) [[likely]]
      return 0;
    return reg.exchange(0, std::memory_order_acquire);
  }
  static std::uint32_t second_word(std::uint64_t rung) noexcept {
    return __builtin_bswap32(static_cast<std::uint32_t>(rung >> 32));
  }

  int fd_ = -1;
  std::byte* memory_ = nullptr;
  std::vector<std::uint32_t> used_;
  std::vector<std::uint32_t> free_;
  std::uint32_t next_ = 1;
};

}  // namespace pollen::soft::uverbs
