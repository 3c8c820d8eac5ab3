#include "pollen/drivers/soft/uverbs/uar.hpp"

#include <rdma/mlx5-abi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "pollen/base/error.hpp"
#include "pollen/drivers/soft/uverbs/libc.hpp"

namespace pollen::soft::uverbs {

namespace {

std::uint64_t now_ns(clockid_t clock) noexcept {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace

static_assert(std::endian::native == std::endian::little);

UarPages::UarPages() {
  constexpr std::size_t bytes = std::size_t{max_pages} * uar_page_bytes;
  fd_ = memfd_create("softmlx5-uar", MFD_CLOEXEC);
  if (fd_ < 0 || ftruncate(fd_, bytes) != 0) throw Error(errno, {.attempted = "make the device's registers"});
  void* memory = libc::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED) throw Error(errno, {.attempted = "map the device's registers"});
  memory_ = static_cast<std::byte*>(memory);
  mlx5_ib_clock_info clock{};
  clock.cycles = now_ns(CLOCK_MONOTONIC);
  clock.nsec = now_ns(CLOCK_REALTIME);
  clock.mult = 1;
  clock.mask = ~std::uint64_t{0};
  std::memcpy(memory_, &clock, sizeof clock);
}

UarPages::~UarPages() {
  if (memory_ != nullptr) munmap(memory_, std::size_t{max_pages} * uar_page_bytes);
  if (fd_ >= 0) libc::close(fd_);
}

std::uint32_t UarPages::allocate() noexcept {
  std::uint32_t page = next_;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else if (next_ == max_pages) {
    return none;
  } else {
    ++next_;
  }
  std::memset(memory_ + std::size_t{page} * uar_page_bytes, 0, uar_page_bytes);
  used_.push_back(page);
  return page;
}

void UarPages::free(std::uint32_t page) noexcept {
  if (std::erase(used_, page) != 0) free_.push_back(page);
}

void* UarPages::map(std::uint32_t page, void* address, std::size_t bytes, int protection,
                    int flags) noexcept {
  const bool known = page == clock_page ? (protection & PROT_WRITE) == 0
                                        : std::find(used_.begin(), used_.end(), page) != used_.end();
  if (bytes > uar_page_bytes || !known) {
    errno = EINVAL;
    return MAP_FAILED;
  }
  return libc::mmap(address, bytes, protection, flags, fd_, static_cast<off_t>(page) * uar_page_bytes);
}

}  // namespace pollen::soft::uverbs
