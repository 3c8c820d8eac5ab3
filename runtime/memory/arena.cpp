#include "pollen/memory/arena.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/memfd.h>
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "pollen/base/error.hpp"
#include "system_memory.hpp"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace pollen::memory {

namespace {

std::string errno_text(int errnum) { return std::generic_category().message(errnum); }

std::string on_node(int node) { return node == any_node ? "on any node" : fmt::format("on node {}", node); }

// A mapped memfd, undone unless it is kept.
struct Mapping {
  int fd = -1;
  std::byte* base = nullptr;
  std::size_t bytes = 0;

  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (base != nullptr) ::munmap(base, bytes);
    if (fd >= 0) ::close(fd);
  }
};

// What went wrong, for the report of the next smaller page or for the error of the last.
struct Failure {
  int errnum = 0;
  std::string why;
};

int make_memfd(const std::string& name, unsigned flags) {
  // Kernels from 6.3 on ask for it and some refuse without; older ones don't know the flag.
  const int fd = ::memfd_create(name.c_str(), flags | MFD_NOEXEC_SEAL);
  if (fd >= 0 || errno != EINVAL) return fd;
  return ::memfd_create(name.c_str(), flags);
}

// Maps the whole file at an address aligned to align_bytes, so that large pages can be used.
std::byte* map_aligned(int fd, std::size_t bytes, std::size_t align_bytes) {
  const std::size_t reserved_bytes = bytes + align_bytes;
  void* reserved =
      ::mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(reserved);
  const auto address = std::bit_cast<std::uintptr_t>(start);
  std::byte* base = start + ((address + align_bytes - 1) / align_bytes * align_bytes - address);
  void* mapped = ::mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  const int errnum = errno;
  if (mapped == MAP_FAILED) {
    ::munmap(reserved, reserved_bytes);
    errno = errnum;
    return nullptr;
  }
  std::byte* end = base + bytes;
  if (base != start) ::munmap(start, static_cast<std::size_t>(base - start));
  if (end != start + reserved_bytes) ::munmap(end, static_cast<std::size_t>(start + reserved_bytes - end));
  return base;
}

// Faults every page in, or says why that is impossible.
std::optional<Failure> fault_in(const Mapping& mapping, std::size_t one_page_bytes) {
  if (::madvise(mapping.base, mapping.bytes, MADV_POPULATE_WRITE) == 0) return std::nullopt;
  if (errno != EINVAL) return Failure{errno == EFAULT ? ENOMEM : errno, {}};
  // Before Linux 5.14: give the file its pages first, after which touching them can't fail.
  if (::fallocate(mapping.fd, 0, 0, static_cast<off_t>(mapping.bytes)) != 0) return Failure{errno, {}};
  for (std::size_t offset = 0; offset < mapping.bytes; offset += one_page_bytes) {
    *const_cast<volatile std::byte*>(mapping.base + offset) = std::byte{0};
  }
  return std::nullopt;
}

// An empty string, or why the memory isn't bound.
std::string bind(const Mapping& mapping, int node) {
  if (node == any_node) return {};
  bitmask* nodes = numa_allocate_nodemask();
  numa_bitmask_setbit(nodes, static_cast<unsigned>(node));
  const long result = ::mbind(mapping.base, mapping.bytes, MPOL_BIND, nodes->maskp, nodes->size + 1, 0);
  const int errnum = errno;
  numa_bitmask_free(nodes);
  return result == 0 ? std::string{} : fmt::format("not bound to node {}: {}", node, errno_text(errnum));
}

// Why a request of this size shouldn't take pages of this kind; empty when it should.
std::string not_warranted(PageKind kind, std::size_t bytes) {
  const std::size_t page = page_bytes(kind);
  const std::size_t rest = bytes % page;
  const std::size_t wasted = rest == 0 ? 0 : page - rest;
  if (kind == PageKind::huge_1g && wasted > bytes / 8) {
    return fmt::format("1 GiB hugepages would waste {}", size_text(wasted));
  }
  if (kind != PageKind::plain && bytes < page / 2) {
    return fmt::format("{} are larger than twice the request", name(kind));
  }
  return {};
}

std::string no_hugepages(PageKind kind, std::uint64_t needed, int node, int errnum) {
  const auto count = hugepage_count(kind, node);
  if (!count) return fmt::format("this kernel has no {}", name(kind));
  if (count->free < needed) {
    return fmt::format("{} {} free {} ({} of {}, {} needed; echo {} > {})",
                       count->free == 0 ? "no" : "too few", name(kind), on_node(node), count->free,
                       count->total, needed, count->total - count->free + needed, count->file);
  }
  return fmt::format("{} {} are free {}, and still: {}", count->free, name(kind), on_node(node),
                     errno_text(errnum));
}

// Other processes map the file too; none of them may shrink it under us.
void seal(int fd) noexcept { ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL); }

struct Attempt {
  const ArenaOptions& options;
  std::string unbound;  // why the memory isn't bound, when it should be

  std::optional<Failure> map(Mapping& mapping, PageKind kind, std::size_t bytes) {
    const bool hugetlb = kind <= PageKind::huge_2m;
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    if (hugetlb) flags |= MFD_HUGETLB | (kind == PageKind::huge_1g ? MFD_HUGE_1GB : MFD_HUGE_2MB);
    mapping.fd = make_memfd("pollen-" + options.name, flags);
    if (mapping.fd < 0) return Failure{errno, fmt::format("memfd_create: {}", errno_text(errno))};
    if (::ftruncate(mapping.fd, static_cast<off_t>(bytes)) != 0) {
      return Failure{errno, fmt::format("ftruncate: {}", errno_text(errno))};
    }
    mapping.base = map_aligned(mapping.fd, bytes, page_bytes(kind));
    if (mapping.base == nullptr) return Failure{errno, {}};
    mapping.bytes = bytes;
    seal(mapping.fd);
    unbound = bind(mapping, options.node);
    if (kind == PageKind::transparent) ::madvise(mapping.base, bytes, MADV_HUGEPAGE);
    if (kind == PageKind::plain) ::madvise(mapping.base, bytes, MADV_NOHUGEPAGE);
    if (auto failure = fault_in(mapping, page_bytes(kind))) return failure;
    // Where shared memory isn't given hugepages as it is touched, it can still be gathered into some.
    if (kind == PageKind::transparent && transparent_bytes(mapping.base) < bytes) {
      ::madvise(mapping.base, bytes, MADV_COLLAPSE);
    }
    ::madvise(mapping.base, bytes, MADV_DONTFORK);
    return std::nullopt;
  }
};

std::string no_transparent() {
  const std::string mode = shared_transparent_mode();
  if (mode.empty()) return "this kernel has no transparent hugepages";
  if (mode == "never" || mode == "deny") {
    return fmt::format(
        "transparent hugepages for shared memory are off (shmem_enabled is {}; echo advise > "
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled)",
        mode);
  }
  return "the kernel found no free memory for transparent hugepages";
}

[[noreturn]] void refuse(const ArenaOptions& options, int errnum, std::string why, std::string remedy = {}) {
  throw Error(errnum,
              {.attempted = fmt::format("make arena {} of {}", options.name, size_text(options.bytes)),
               .on = options.node == any_node ? "" : fmt::format("node {}", options.node),
               .why = std::move(why),
               .remedy = std::move(remedy)});
}

void check(const ArenaOptions& options) {
  if (options.bytes == 0) refuse(options, EINVAL, "an arena needs at least one byte");
  if (options.bytes >
      static_cast<std::size_t>(std::numeric_limits<off_t>::max()) - page_bytes(PageKind::huge_1g)) {
    refuse(options, EINVAL, "the size overflows");
  }
  if (options.largest > options.smallest) {
    refuse(options, EINVAL,
           fmt::format("the largest page asked for ({}) is smaller than the smallest ({})",
                       name(options.largest), name(options.smallest)));
  }
  if (options.node < any_node) refuse(options, EINVAL, "a NUMA node is a number from 0 on");
}

// The node to bind to: the one asked for, or any_node where the machine knows no nodes.
int usable_node(const ArenaOptions& options, std::string& unbound) {
  if (options.node == any_node) return any_node;
  if (::numa_available() < 0) {
    unbound = "not bound: this kernel has no NUMA support";
    return any_node;
  }
  const int highest = ::numa_max_node();
  if (options.node > highest ||
      numa_bitmask_isbitset(numa_all_nodes_ptr, static_cast<unsigned>(options.node)) == 0) {
    refuse(options, EINVAL,
           fmt::format("there is no such NUMA node, or the cpuset allows none of its memory "
                       "(highest node is {})",
                       highest),
           "See numactl --hardware and cpuset.mems.effective");
  }
  return options.node;
}

std::string join(const std::vector<std::string>& parts) {
  std::string out;
  for (const auto& part : parts) out += (out.empty() ? "" : "; ") + part;
  return out;
}

}  // namespace

Arena::Arena(const ArenaOptions& asked) {
  check(asked);
  std::string unbound;
  ArenaOptions options = asked;
  options.node = usable_node(asked, unbound);
  Attempt attempt{options, unbound};

  std::vector<std::string> reasons;
  int errnum = ENOMEM;
  for (const PageKind kind : page_kinds) {
    if (kind < options.largest || kind > options.smallest) continue;
    if (auto why = not_warranted(kind, options.bytes); !why.empty()) {
      reasons.push_back(std::move(why));
      continue;
    }
    const std::size_t page = page_bytes(kind);
    const std::size_t bytes = (options.bytes + page - 1) / page * page;
    const bool hugetlb = kind <= PageKind::huge_2m;
    if (!hugetlb) {
      // Asked too much, the kernel kills a process, not necessarily this one.
      const auto available = available_bytes(options.node);
      if (available && bytes > *available) {
        reasons.push_back(
            fmt::format("only {} of memory are available {}", size_text(*available), on_node(options.node)));
        break;
      }
    }
    Mapping mapping;
    if (const auto failure = attempt.map(mapping, kind, bytes)) {
      errnum = failure->errnum;
      if (!failure->why.empty()) {
        reasons.push_back(failure->why);
      } else if (hugetlb) {
        reasons.push_back(no_hugepages(kind, bytes / page, options.node, errnum));
      } else {
        reasons.push_back(fmt::format("{}: {}", name(kind), errno_text(errnum)));
      }
      continue;
    }

    page_kind_ = kind;
    std::string pages = fmt::format("{} {}", bytes / page, name(kind));
    if (kind == PageKind::transparent) {
      const std::uint64_t gathered = transparent_bytes(mapping.base);
      pages =
          fmt::format("transparent {} hugepages ({} of {})", size_text(page), gathered / page, bytes / page);
      if (gathered < bytes / 2) {
        reasons.push_back(no_transparent());
        if (options.smallest == PageKind::transparent) break;
        page_kind_ = PageKind::plain;
      }
    }
    if (page_kind_ == PageKind::plain) {
      pages = fmt::format("plain {} pages", size_text(page_bytes(PageKind::plain)));
    }
    report_ = fmt::format("{} {} in {}", size_text(bytes), on_node(options.node), pages);
    if (!attempt.unbound.empty()) reasons.push_back(attempt.unbound);
    if (!reasons.empty()) report_ += ": " + join(reasons);
    base_ = std::exchange(mapping.base, nullptr);
    fd_ = std::exchange(mapping.fd, -1);
    size_bytes_ = bytes;
    node_ = attempt.unbound.empty() ? options.node : any_node;
    return;
  }
  refuse(options, errnum, join(reasons),
         options.smallest < PageKind::plain ? "Reserve hugepages, or allow smaller pages"
                                            : "Ask for less memory");
}

Arena::~Arena() { release(); }

Arena::Arena(Arena&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      used_bytes_(std::exchange(other.used_bytes_, 0)),
      fd_(std::exchange(other.fd_, -1)),
      node_(other.node_),
      page_kind_(other.page_kind_),
      report_(std::move(other.report_)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this == &other) return *this;
  release();
  base_ = std::exchange(other.base_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  used_bytes_ = std::exchange(other.used_bytes_, 0);
  fd_ = std::exchange(other.fd_, -1);
  node_ = other.node_;
  page_kind_ = other.page_kind_;
  report_ = std::move(other.report_);
  return *this;
}

void Arena::release() noexcept {
  if (base_ != nullptr) ::munmap(base_, size_bytes_);
  if (fd_ >= 0) ::close(fd_);
  base_ = nullptr;
  fd_ = -1;
}

std::span<std::byte> Arena::allocate(std::size_t bytes, std::size_t align_bytes) {
  const auto refuse_part = [&](int errnum, std::string why, std::string remedy = {}) {
    throw Error(errnum, {.attempted = fmt::format("take {} aligned to {} from an arena of {}",
                                                  size_text(bytes), align_bytes, size_text(size_bytes_)),
                         .why = std::move(why),
                         .remedy = std::move(remedy)});
  };
  if (!std::has_single_bit(align_bytes)) refuse_part(EINVAL, "an alignment is a power of two");
  const auto address = std::bit_cast<std::uintptr_t>(base_) + used_bytes_;
  const std::size_t padding = (align_bytes - (address & (align_bytes - 1))) & (align_bytes - 1);
  if (padding > free_bytes() || bytes > free_bytes() - padding) {
    refuse_part(ENOMEM, fmt::format("{} are left", size_text(free_bytes())), "Make the arena larger");
  }
  std::byte* start = base_ + used_bytes_ + padding;
  used_bytes_ += padding + bytes;
  return {start, bytes};
}

}  // namespace pollen::memory
