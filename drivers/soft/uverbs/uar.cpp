#include "pollen/drivers/soft/uverbs/uar.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "pollen/base/error.hpp"
#include "pollen/drivers/soft/uverbs/libc.hpp"

namespace pollen::soft::uverbs {

static_assert(std::endian::native == std::endian::little);

UarPages::UarPages() {
  constexpr std::size_t bytes = std::size_t{max_pages} * uar_page_bytes;
  fd_ = memfd_create("softmlx5-uar", MFD_CLOEXEC);
  if (fd_ < 0 || ftruncate(fd_, bytes) != 0) throw Error(errno, {.attempted = "make the device's registers"});
  void* memory = libc::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED) throw Error(errno, {.attempted = "map the device's registers"});
  memory_ = static_cast<std::byte*>(memory);
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

void* UarPages::map(std::uint32_t page, void* address, std::size_t bytes, int protection, int flags) noexcept {
  if (bytes > uar_page_bytes || std::find(used_.begin(), used_.end(), page) == used_.end()) {
    errno = EINVAL;
    return MAP_FAILED;
  }
  return libc::mmap(address, bytes, protection, flags, fd_, static_cast<off_t>(page) * uar_page_bytes);
}

}  // namespace pollen::soft::uverbs
