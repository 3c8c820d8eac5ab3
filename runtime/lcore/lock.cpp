#include "pollen/lcore/lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <utility>

#include "pollen/base/error.hpp"

namespace pollen::lcore {

namespace {

constexpr std::string_view file_prefix = "lcore-";
constexpr std::string_view file_suffix = ".lock";

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }
  int take() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Only a directory that nobody else can write to may be trusted: another user could otherwise hold
// our lcores, or have us write through a link.
void prepare_directory(const std::filesystem::path& directory) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    throw Error(errno, {.attempted = fmt::format("create the lock directory {}", directory.string()),
                        .remedy = fmt::format("Make {} writable", directory.parent_path().string())});
  }
  struct stat status {};
  if (lstat(directory.c_str(), &status) != 0) {
    throw Error(errno, {.attempted = fmt::format("use the lock directory {}", directory.string())});
  }
  std::string why;
  if (!S_ISDIR(status.st_mode)) {
    why = "it is no directory";
  } else if (status.st_uid != geteuid()) {
    why = fmt::format("it belongs to user {} and not to {}", status.st_uid, geteuid());
  } else if ((status.st_mode & 022) != 0) {
    why = fmt::format("others may write to it (mode {:o})", status.st_mode & 0777);
  }
  if (why.empty()) return;
  throw Error(EPERM, {.attempted = fmt::format("use the lock directory {}", directory.string()),
                      .why = std::move(why),
                      .remedy = "Remove it, or set XDG_RUNTIME_DIR to a directory of your own"});
}

struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;  // l_pid must be 0 for this kind of lock
}

bool try_lock(int fd) {
  struct flock lock = whole_file();
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

bool is_locked(int fd) {
  struct flock lock = whole_file();
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

struct Holder {
  pid_t pid;
  std::string program;
};

std::optional<Holder> read_holder(int fd) {
  char text[128];
  const ssize_t length = pread(fd, text, sizeof text, 0);
  if (length <= 0) return std::nullopt;
  const char* end = text + length;
  Holder holder{};
  const auto number = std::from_chars(text, end, holder.pid);
  if (number.ec != std::errc{} || holder.pid <= 0) return std::nullopt;
  for (const char* c = number.ptr; c != end && *c != '\n'; ++c) {
    if (*c > ' ' && *c < 127) holder.program += *c;
  }
  return holder;
}

void sleep_ms(long ms) {
  const timespec time{.tv_sec = 0, .tv_nsec = ms * 1'000'000};
  nanosleep(&time, nullptr);
}

[[noreturn]] void refuse(unsigned cpu, const std::filesystem::path& path, int fd) {
  // The holder writes its name just after it got the lock: give it a moment.
  auto holder = read_holder(fd);
  for (int tries = 0; !holder && tries < 50; ++tries) {
    sleep_ms(1);
    holder = read_holder(fd);
  }
  throw Error(EBUSY,
              {.attempted = fmt::format("take lcore {}", cpu),
               .why = holder ? fmt::format("it is in use by pid {} ({})", holder->pid, holder->program)
                             : fmt::format("it is in use by a process that did not leave its name in {}",
                                           path.string()),
               .remedy = "Choose other cores with --lcores, or stop that process"});
}

// A holder removes the file as it leaves, so what was opened may no longer be what the name stands for.
bool is_still_there(int fd, const std::filesystem::path& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(fd, &opened) == 0 && lstat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

int acquire(unsigned cpu, const std::filesystem::path& path) {
  for (int tries = 0; tries < 1000; ++tries) {
    File file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file.get() < 0)
      throw Error(errno, {.attempted = fmt::format("open the lock file {}", path.string())});
    if (!try_lock(file.get())) {
      if (errno == EAGAIN || errno == EACCES) refuse(cpu, path, file.get());
      throw Error(errno, {.attempted = fmt::format("lock {}", path.string())});
    }
    if (!is_still_there(file.get(), path)) continue;

    const std::string text = fmt::format("{} {}\n", getpid(), program_invocation_short_name);
    if (ftruncate(file.get(), 0) != 0 ||
        pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
      const int errnum = errno;
      unlink(path.c_str());
      throw Error(errnum, {.attempted = fmt::format("write to the lock file {}", path.string())});
    }
    return file.take();
  }
  throw Error(EBUSY, {.attempted = fmt::format("take lcore {}", cpu),
                      .why = fmt::format("{} is being created and removed all the time", path.string())});
}

std::optional<unsigned> cpu_of(std::string_view name) {
  if (!name.starts_with(file_prefix) || !name.ends_with(file_suffix)) return std::nullopt;
  if (name.size() <= file_prefix.size() + file_suffix.size()) return std::nullopt;
  name.remove_prefix(file_prefix.size());
  name.remove_suffix(file_suffix.size());
  unsigned cpu = 0;
  const auto result = std::from_chars(name.data(), name.data() + name.size(), cpu);
  if (result.ec != std::errc{} || result.ptr != name.data() + name.size() || cpu >= CpuSet::limit)
    return std::nullopt;
  return cpu;
}

}  // namespace

std::filesystem::path lock_directory() {
  if (geteuid() == 0) return "/run/pollen";
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::error_code ignored;
  if (runtime != nullptr && runtime[0] == '/' && std::filesystem::is_directory(runtime, ignored)) {
    return std::filesystem::path(runtime) / "pollen";
  }
  return fmt::format("/tmp/pollen-{}", geteuid());
}

LcoreLock::LcoreLock(unsigned cpu, const std::filesystem::path& directory)
    : cpu_(cpu), path_(directory / fmt::format("{}{}{}", file_prefix, cpu, file_suffix)), owner_(getpid()) {
  prepare_directory(directory);
  fd_ = acquire(cpu, path_);
}

LcoreLock::~LcoreLock() { release(); }

LcoreLock::LcoreLock(LcoreLock&& other) noexcept
    : cpu_(other.cpu_),
      path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      owner_(other.owner_) {}

LcoreLock& LcoreLock::operator=(LcoreLock&& other) noexcept {
  if (this != &other) {
    release();
    cpu_ = other.cpu_;
    path_ = std::move(other.path_);
    fd_ = std::exchange(other.fd_, -1);
    owner_ = other.owner_;
  }
  return *this;
}

void LcoreLock::release() noexcept {
  if (fd_ < 0) return;
  // Removed while still locked: whoever opened it meanwhile finds it gone and starts over.
  if (getpid() == owner_) unlink(path_.c_str());
  close(fd_);
  fd_ = -1;
}

CpuSet held_lcores(const std::filesystem::path& directory) {
  CpuSet out;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const auto cpu = cpu_of(it->path().filename().string());
    if (!cpu) continue;
    const File file(open(it->path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (file.get() >= 0 && is_locked(file.get())) out.add(*cpu);
  }
  return out;
}

}  // namespace pollen::lcore
