// The functions of the C library that stand before the device: paths, descriptors, ioctl and mmap.
// Whatever does not concern it goes on to the next library at once.
//
// Two names for each function that knows of file sizes: programs call either.
#undef _FILE_OFFSET_BITS
#include <dirent.h>
#include <fcntl.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "pollen/drivers/soft/uverbs/cm.hpp"
#include "pollen/drivers/soft/uverbs/context.hpp"
#include "pollen/drivers/soft/uverbs/fd_table.hpp"
#include "pollen/drivers/soft/uverbs/libc.hpp"
#include "pollen/drivers/soft/uverbs/paths.hpp"

#define SOFTMLX5_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

namespace softmlx5 = pollen::soft::uverbs;
using softmlx5::PathKind;

constexpr int netlink_rdma = 20;

int open_device(const char* path, int flags) noexcept {
  const int fd = softmlx5::libc::open(path, flags);
  if (fd < 0) return fd;
  bool added = false;
  try {
    added = softmlx5::fd_table::add(fd, std::make_shared<softmlx5::Context>());
  } catch (const std::bad_alloc&) {
  }
  if (added) return fd;
  softmlx5::libc::close(fd);
  errno = EMFILE;
  return -1;
}

// The path to use, or null with errno when there is nothing.
const char* instead(const char* path, char (&buffer)[PATH_MAX]) noexcept {
  switch (softmlx5::look_up(path, buffer)) {
    case PathKind::other:
      return path;
    case PathKind::redirected:
    case PathKind::uverbs:
    case PathKind::cm:
      return buffer;
    case PathKind::absent:
      break;
  }
  errno = ENOENT;
  return nullptr;
}

// call(path) for the path that stands for this one.
template <typename Result, typename Call>
Result with_path(const char* path, Result failed, Call&& call) noexcept {
  char buffer[PATH_MAX];
  const char* const real = instead(path, buffer);
  return real == nullptr ? failed : call(real);
}

template <typename Call>
int open_path(const char* path, int flags, Call&& call) noexcept {
  char buffer[PATH_MAX];
  const PathKind kind = softmlx5::look_up(path, buffer);
  if (kind == PathKind::uverbs) return open_device(buffer, flags);
  if (kind == PathKind::cm) return softmlx5::open_cm_channel();
  return with_path(path, -1, call);
}

template <typename Function>
Function* next(const char* name) noexcept {
  return softmlx5::libc::next<Function>(name);
}

mode_t mode_of(int flags, va_list arguments) noexcept {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, mode_t) : 0;
}

int duplicate(int from, int to) noexcept {
  if (to < 0) return to;
  auto target = softmlx5::fd_table::find(from);
  softmlx5::fd_table::remove(to);
  try {
    if (target != nullptr) softmlx5::fd_table::add(to, std::move(target));
  } catch (const std::bad_alloc&) {
  }
  return to;
}

}  // namespace

// --- paths ------------------------------------------------------------------------------------

#define SOFTMLX5_OPEN(name)                                                               \
  SOFTMLX5_EXPORT int name(const char* path, int flags, ...) {                            \
    static const auto real = next<int(const char*, int, ...)>(#name);                     \
    va_list arguments;                                                                    \
    va_start(arguments, flags);                                                           \
    const mode_t mode = mode_of(flags, arguments);                                        \
    va_end(arguments);                                                                    \
    return open_path(path, flags, [&](const char* at) { return real(at, flags, mode); }); \
  }
SOFTMLX5_OPEN(open)
SOFTMLX5_OPEN(open64)

#define SOFTMLX5_OPENAT(name)                                                                  \
  SOFTMLX5_EXPORT int name(int dir, const char* path, int flags, ...) {                        \
    static const auto real = next<int(int, const char*, int, ...)>(#name);                     \
    va_list arguments;                                                                         \
    va_start(arguments, flags);                                                                \
    const mode_t mode = mode_of(flags, arguments);                                             \
    va_end(arguments);                                                                         \
    return open_path(path, flags, [&](const char* at) { return real(dir, at, flags, mode); }); \
  }
SOFTMLX5_OPENAT(openat)
SOFTMLX5_OPENAT(openat64)

// What open becomes in programs that were built with _FORTIFY_SOURCE.
#define SOFTMLX5_OPEN_2(name)                                                       \
  SOFTMLX5_EXPORT int name(const char* path, int flags) {                           \
    static const auto real = next<int(const char*, int)>(#name);                    \
    return open_path(path, flags, [&](const char* at) { return real(at, flags); }); \
  }
SOFTMLX5_OPEN_2(__open_2)
SOFTMLX5_OPEN_2(__open64_2)

#define SOFTMLX5_FOPEN(name)                                                                             \
  SOFTMLX5_EXPORT FILE* name(const char* path, const char* mode) {                                       \
    static const auto real = next<FILE*(const char*, const char*)>(#name);                               \
    return with_path(path, static_cast<FILE*>(nullptr), [&](const char* at) { return real(at, mode); }); \
  }
SOFTMLX5_FOPEN(fopen)
SOFTMLX5_FOPEN(fopen64)

SOFTMLX5_EXPORT DIR* opendir(const char* path) {
  static const auto real = next<DIR*(const char*)>("opendir");
  return with_path(path, static_cast<DIR*>(nullptr), [&](const char* at) { return real(at); });
}

#define SOFTMLX5_STAT(name, type)                                              \
  SOFTMLX5_EXPORT int name(const char* path, struct type* out) noexcept {      \
    static const auto real = next<int(const char*, struct type*)>(#name);      \
    return with_path(path, -1, [&](const char* at) { return real(at, out); }); \
  }
SOFTMLX5_STAT(stat, stat)
SOFTMLX5_STAT(stat64, stat64)
SOFTMLX5_STAT(lstat, stat)
SOFTMLX5_STAT(lstat64, stat64)

#define SOFTMLX5_FSTATAT(name, type)                                                          \
  SOFTMLX5_EXPORT int name(int dir, const char* path, struct type* out, int flags) noexcept { \
    static const auto real = next<int(int, const char*, struct type*, int)>(#name);           \
    return with_path(path, -1, [&](const char* at) { return real(dir, at, out, flags); });    \
  }
SOFTMLX5_FSTATAT(fstatat, stat)
SOFTMLX5_FSTATAT(fstatat64, stat64)

SOFTMLX5_EXPORT int statx(int dir, const char* path, int flags, unsigned mask, struct statx* out) noexcept {
  static const auto real = next<int(int, const char*, int, unsigned, struct statx*)>("statx");
  return with_path(path, -1, [&](const char* at) { return real(dir, at, flags, mask, out); });
}

// What stat is in programs that were built for older C libraries.
#define SOFTMLX5_XSTAT(name, type)                                                      \
  SOFTMLX5_EXPORT int name(int version, const char* path, struct type* out) noexcept {  \
    static const auto real = next<int(int, const char*, struct type*)>(#name);          \
    return with_path(path, -1, [&](const char* at) { return real(version, at, out); }); \
  }
SOFTMLX5_XSTAT(__xstat, stat)
SOFTMLX5_XSTAT(__xstat64, stat64)
SOFTMLX5_XSTAT(__lxstat, stat)
SOFTMLX5_XSTAT(__lxstat64, stat64)

SOFTMLX5_EXPORT int access(const char* path, int mode) noexcept {
  static const auto real = next<int(const char*, int)>("access");
  return with_path(path, -1, [&](const char* at) { return real(at, mode); });
}

SOFTMLX5_EXPORT ssize_t readlink(const char* path, char* out, std::size_t bytes) noexcept {
  static const auto real = next<ssize_t(const char*, char*, std::size_t)>("readlink");
  return with_path(path, ssize_t{-1}, [&](const char* at) { return real(at, out, bytes); });
}

SOFTMLX5_EXPORT char* realpath(const char* path, char* out) noexcept {
  static const auto real = next<char*(const char*, char*)>("realpath");
  return with_path(path, static_cast<char*>(nullptr), [&](const char* at) { return real(at, out); });
}

// --- descriptors ------------------------------------------------------------------------------

SOFTMLX5_EXPORT int close(int fd) {
  softmlx5::fd_table::remove(fd);
  return softmlx5::libc::close(fd);
}

SOFTMLX5_EXPORT int dup(int fd) noexcept {
  static const auto real = next<int(int)>("dup");
  return duplicate(fd, real(fd));
}

SOFTMLX5_EXPORT int dup2(int fd, int to) noexcept {
  static const auto real = next<int(int, int)>("dup2");
  return fd == to ? real(fd, to) : duplicate(fd, real(fd, to));
}

SOFTMLX5_EXPORT int dup3(int fd, int to, int flags) noexcept {
  static const auto real = next<int(int, int, int)>("dup3");
  return duplicate(fd, real(fd, to, flags));
}

#define SOFTMLX5_FCNTL(name)                                                                  \
  SOFTMLX5_EXPORT int name(int fd, int command, ...) {                                        \
    static const auto real = next<int(int, int, ...)>(#name);                                 \
    va_list arguments;                                                                        \
    va_start(arguments, command);                                                             \
    void* const argument = va_arg(arguments, void*);                                          \
    va_end(arguments);                                                                        \
    const int result = real(fd, command, argument);                                           \
    return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? duplicate(fd, result) : result; \
  }
SOFTMLX5_FCNTL(fcntl)
SOFTMLX5_FCNTL(fcntl64)

SOFTMLX5_EXPORT ssize_t write(int fd, const void* data, std::size_t bytes) {
  if (const auto channel = softmlx5::fd_table::find_as<softmlx5::CmChannel>(fd); channel != nullptr)
    return softmlx5::write_cm_command(fd, channel, data, bytes);
  return softmlx5::libc::write(fd, data, bytes);
}

// The kernel's own RDMA devices are not to be seen: libibverbs then reads sysfs.
SOFTMLX5_EXPORT int socket(int family, int type, int protocol) noexcept {
  static const auto real = next<int(int, int, int)>("socket");
  if (family == AF_NETLINK && protocol == netlink_rdma) {
    errno = EPROTONOSUPPORT;
    return -1;
  }
  return real(family, type, protocol);
}

SOFTMLX5_EXPORT int ioctl(int fd, unsigned long request, ...) noexcept {
  static const auto real = next<int(int, unsigned long, ...)>("ioctl");
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  if (request == RDMA_VERBS_IOCTL) {
    if (const auto context = softmlx5::fd_table::find_as<softmlx5::Context>(fd); context != nullptr) {
      const int failed = context->invoke(*static_cast<ib_uverbs_ioctl_hdr*>(argument));
      if (failed == 0) return 0;
      errno = failed;
      return -1;
    }
  }
  return real(fd, request, argument);
}

#define SOFTMLX5_MMAP(name)                                                                            \
  SOFTMLX5_EXPORT void* name(void* address, std::size_t bytes, int protection, int flags, int fd,      \
                             off_t offset) noexcept {                                                  \
    static const auto real = next<void*(void*, std::size_t, int, int, int, off_t)>(#name);             \
    if (fd >= 0)                                                                                       \
      if (const auto context = softmlx5::fd_table::find_as<softmlx5::Context>(fd); context != nullptr) \
        return context->map(address, bytes, protection, flags, static_cast<std::uint64_t>(offset));    \
    return real(address, bytes, protection, flags, fd, offset);                                        \
  }
SOFTMLX5_MMAP(mmap)
SOFTMLX5_MMAP(mmap64)
