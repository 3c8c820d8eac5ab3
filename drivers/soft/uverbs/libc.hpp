// The C library's own functions, behind those that the preload library puts before them.
#pragma once

#include <dirent.h>
#include <dlfcn.h>
#include <sys/types.h>

#include <cstdio>

namespace pollen::soft::uverbs::libc {

// `Name` as the next library in the order has it. Null only when there is no such function.
template <typename Function>
Function* next(const char* name) noexcept {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

inline int open(const char* path, int flags, mode_t mode = 0) noexcept {
  static const auto function = next<int(const char*, int, ...)>("open64");
  return function(path, flags, mode);
}
inline int close(int fd) noexcept {
  static const auto function = next<int(int)>("close");
  return function(fd);
}
inline ssize_t write(int fd, const void* data, std::size_t bytes) noexcept {
  static const auto function = next<ssize_t(int, const void*, std::size_t)>("write");
  return function(fd, data, bytes);
}
inline void* mmap(void* address, std::size_t bytes, int protection, int flags, int fd,
                  off_t offset) noexcept {
  static const auto function = next<void*(void*, std::size_t, int, int, int, off_t)>("mmap64");
  return function(address, bytes, protection, flags, fd, offset);
}

}  // namespace pollen::soft::uverbs::libc
