#include "pollen/drivers/soft/directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>

#include "pollen/base/error.hpp"

namespace pollen::soft {

namespace {

constexpr std::uint64_t inbox_magic = 0x31786f626e69ULL << 16 | 0x6c70;  // "pl", "inbox1"
constexpr std::uint32_t inbox_version = 1;
constexpr std::uint64_t table_magic = 0x31656c626174ULL << 16 | 0x6c70;  // "pl", "table1"

// Inboxes of this process, so that its engines reach each other without a second mapping, and at
// all when nothing is on the wire outside. Control path only.
struct LocalInboxes {
  std::mutex mutex;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::shared_ptr<InboxMapping>> by_place;
};
LocalInboxes& local_inboxes() {
  static LocalInboxes inboxes;
  return inboxes;
}

class FileLock {
 public:
  explicit FileLock(int fd) noexcept : threads_(mutex()), fd_(fd) {
    while (flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~FileLock() { flock(fd_, LOCK_UN); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  // flock() is between open files: the threads of a process need one more.
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  const std::lock_guard<std::mutex> threads_;
  int fd_;
};

std::string default_dir() {
  if (const char* dir = std::getenv("POLLEN_SHM_DIR"); dir != nullptr && *dir != 0) return dir;
  return fmt::format("/dev/shm/pollen-{}", geteuid());
}

[[noreturn]] void throw_memory_error(int errnum, std::string attempted, const std::string& path) {
  std::string why;
  std::string remedy;
  if (errnum == ENOSPC || errnum == EDQUOT) {
    why = "the shared memory filesystem is full";
    remedy =
        "Free space there (df), enlarge it (mount -o remount,size=1G /dev/shm; docker run --shm-size=1g), "
        "or set POLLEN_SHM_DIR to a directory with room";
  } else if (errnum == EROFS || errnum == EACCES || errnum == EPERM) {
    why = errnum == EROFS ? "the filesystem is read-only" : "this user may not write there";
    remedy = "Make it writable, or set POLLEN_SHM_DIR to a directory that is";
  }
  throw Error(errnum, {.attempted = std::move(attempted), .on = path, .why = why, .remedy = remedy});
}

}  // namespace

driver::Gid device_gid(std::uint32_t device, std::uint32_t index) noexcept {
  driver::Gid gid;
  auto& b = gid.bytes;
  const auto last = static_cast<std::uint8_t>(device + 1);
  if (index == 0) {
    b = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 'p', 'l', 0xff, 0xfe, 'n', 0, last};
  } else {
    b = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 80, 76, last};  // 127.80.76.N: this host only
  }
  return gid;
}

std::uint32_t device_of_gid(const driver::Gid& gid) noexcept {
  for (std::uint32_t device = 0; device < max_devices; ++device)
    if (gid == device_gid(device, 0) || gid == device_gid(device, 1)) return device;
  return max_devices;
}

InboxMapping::~InboxMapping() {
  munmap(inbox_, sizeof(Inbox));
  if (fd_ >= 0) ::close(fd_);
}

bool InboxMapping::is_attended() const noexcept {
  return std::atomic_ref(inbox_->header.magic).load(std::memory_order_acquire) == inbox_magic &&
         inbox_->header.version == inbox_version && is_alive(owner());
}

void InboxMapping::close() noexcept {
  std::atomic_ref(inbox_->header.magic).store(0, std::memory_order_release);
}

Lane* InboxMapping::claim_lane(const ProcessId& sender, std::uint32_t sender_engine) {
  for (std::uint32_t i = 0; i < max_lanes; ++i) {
    Lane& lane = inbox_->lanes[i];
    std::uint32_t expected = lane_free;
    // The header's page is there from the beginning; see Directory::take_slot.
    if (!lane.header.state.compare_exchange_strong(expected, lane_claimed, std::memory_order_acquire))
      continue;
    if (fd_ >= 0) {
      const auto offset = reinterpret_cast<std::byte*>(&lane) - reinterpret_cast<std::byte*>(inbox_);
      const int failed = posix_fallocate(fd_, offset, sizeof(Lane));
      if (failed != 0) {
        lane.header.state.store(lane_free, std::memory_order_release);
        throw_memory_error(failed, fmt::format("open a lane of {} KiB to another engine", sizeof(Lane) >> 10),
                           "shared memory");
      }
    }
    lane.header.sender_pid = sender.pid;
    lane.header.sender_start_time = sender.start_time;
    lane.header.sender_engine = sender_engine;
    lane.header.consumed.store(0, std::memory_order_relaxed);
    lane.header.references_refused.store(0, std::memory_order_relaxed);
    for (Slot& slot : lane.slots) slot.sequence.store(0, std::memory_order_relaxed);
    lane.header.state.store(lane_open, std::memory_order_release);
    inbox_->header.lanes_in_use.fetch_or(std::uint64_t{1} << i, std::memory_order_release);
    return &lane;
  }
  return nullptr;
}

void InboxMapping::close_lane(Lane& lane) noexcept {
  lane.header.state.store(lane_closed, std::memory_order_release);
}

void InboxMapping::free_lane(std::uint32_t index) noexcept {
  Lane& lane = inbox_->lanes[index];
  inbox_->header.lanes_in_use.fetch_and(~(std::uint64_t{1} << index), std::memory_order_relaxed);
  // All but the header's page goes back to the system.
  std::byte* slots = reinterpret_cast<std::byte*>(&lane.slots);
  const std::size_t bytes = sizeof(Lane) - offsetof(Lane, slots);
  if (fd_ >= 0)
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, slots - reinterpret_cast<std::byte*>(inbox_),
              static_cast<off_t>(bytes));
  else
    madvise(slots, bytes, MADV_DONTNEED);
  lane.header.state.store(lane_free, std::memory_order_release);
}

struct Directory::Table {
  std::uint64_t magic;
  struct {
    std::uint32_t pid;
    std::uint32_t reserved;
    std::uint64_t start_time;
  } engines[max_engines];
};

Directory::Directory(std::uint32_t device, const SoftOptions& options)
    : device_(device), wire_(options.wire), dir_(options.shm_dir.empty() ? default_dir() : options.shm_dir) {
  if (wire_ != Wire::shared_memory) return;
  try {
    open_table();
  } catch (...) {
    close_table();
    throw;
  }
}

Directory::~Directory() { close_table(); }

void Directory::close_table() noexcept {
  if (table_ != nullptr) munmap(table_, sizeof(Table));
  if (table_fd_ >= 0) ::close(table_fd_);
}

std::string Directory::path(std::uint32_t device) const { return fmt::format("{}/soft{}", dir_, device); }
std::string Directory::inbox_path(std::uint32_t device, std::uint32_t slot) const {
  return fmt::format("{}/soft{}.{}", dir_, device, slot);
}
std::string Directory::wake_path(std::uint32_t device, std::uint32_t slot) const {
  return inbox_path(device, slot) + ".wake";
}

void Directory::open_table() {
  if (mkdir(dir_.c_str(), 0700) != 0 && errno != EEXIST)
    throw_memory_error(errno, "create the software NIC's directory", dir_);
  struct stat info {};
  if (stat(dir_.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    throw Error(ENOTDIR, {.attempted = "use the software NIC's directory",
                          .on = dir_,
                          .why = "it is not a directory",
                          .remedy = "Remove it, or set POLLEN_SHM_DIR to another place"});
  if (info.st_uid != geteuid())
    throw Error(EPERM,
                {.attempted = "use the software NIC's directory",
                 .on = dir_,
                 .why = fmt::format("it belongs to user {}", info.st_uid),
                 .remedy = "Have its owner remove it, or set POLLEN_SHM_DIR to a directory of your own"});
  const std::string file = path(device_);
  table_fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (table_fd_ < 0) throw_memory_error(errno, "open the software NIC's table of engines", file);
  FileLock lock(table_fd_);
  if (const int failed = posix_fallocate(table_fd_, 0, sizeof(Table)); failed != 0)
    throw_memory_error(failed, "reserve the software NIC's table of engines", file);
  void* memory = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, table_fd_, 0);
  if (memory == MAP_FAILED) throw_memory_error(errno, "map the software NIC's table of engines", file);
  table_ = static_cast<Table*>(memory);
  if (table_->magic == 0) table_->magic = table_magic;
  if (table_->magic != table_magic)
    throw Error(EPROTO, {.attempted = "use the software NIC's table of engines",
                         .on = file,
                         .why = "another release of Pollen wrote it",
                         .remedy = fmt::format("End its programs and remove {}", dir_)});
  sweep();
}

// With the table's lock held.
void Directory::sweep() noexcept {
  for (std::uint32_t slot = 0; slot < max_engines; ++slot) {
    auto& engine = table_->engines[slot];
    if (engine.pid == 0 || is_alive({engine.pid, engine.start_time})) continue;
    unlink(inbox_path(device_, slot).c_str());
    unlink(wake_path(device_, slot).c_str());
    engine = {};
  }
}

Directory::Place Directory::take_slot() {
  const ProcessId self = this_process();
  std::uint32_t slot = max_engines;
  Inbox* inbox = nullptr;
  int fd = -1;
  auto& local = local_inboxes();
  if (wire_ == Wire::in_process) {
    const std::lock_guard guard(local.mutex);
    for (slot = 0; slot < max_engines && local.by_place.contains({device_, slot}); ++slot) {
    }
    if (slot == max_engines)
      throw Error(ENOSPC, {.attempted = "start an engine of the software NIC", .why = "all slots are taken"});
    void* memory = mmap(nullptr, sizeof(Inbox), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw_memory_error(errno, "map an inbox", "this process");
    inbox = static_cast<Inbox*>(memory);
    local.by_place[{device_, slot}] = std::make_shared<InboxMapping>(inbox, -1);
  } else {
    FileLock lock(table_fd_);
    sweep();
    for (slot = 0; slot < max_engines && table_->engines[slot].pid != 0; ++slot) {
    }
    if (slot == max_engines)
      throw Error(ENOSPC, {.attempted = "start an engine of the software NIC",
                           .on = path(device_),
                           .why = fmt::format("all {} slots are taken by running programs", max_engines),
                           .remedy = "End some, or use another device (soft1, …)"});
    const std::string file = inbox_path(device_, slot);
    unlink(file.c_str());
    fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) throw_memory_error(errno, "create an engine's inbox", file);
    const auto fail = [&](int errnum, const char* attempted) {
      ::close(fd);
      unlink(file.c_str());
      throw_memory_error(errnum, attempted, file);
    };
    if (ftruncate(fd, sizeof(Inbox)) != 0) fail(errno, "size an engine's inbox");
    // Memory for the headers now: later a full filesystem would be a SIGBUS. A lane's slots get
    // theirs when it is claimed.
    int failed = posix_fallocate(fd, 0, sizeof(InboxHeader));
    for (std::uint32_t i = 0; failed == 0 && i < max_lanes; ++i)
      failed = posix_fallocate(fd, static_cast<off_t>(offsetof(Inbox, lanes) + i * sizeof(Lane)),
                               sizeof(LaneHeader));
    if (failed != 0) fail(failed, "reserve an engine's inbox");
    void* memory = mmap(nullptr, sizeof(Inbox), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) fail(errno, "map an engine's inbox");
    inbox = static_cast<Inbox*>(memory);
    table_->engines[slot] = {self.pid, 0, self.start_time};
    const std::lock_guard guard(local.mutex);
    local.by_place[{device_, slot}] = std::make_shared<InboxMapping>(inbox, fd);
  }
  inbox->header.version = inbox_version;
  inbox->header.pid = self.pid;
  inbox->header.start_time = self.start_time;
  std::atomic_ref(inbox->header.magic).store(inbox_magic, std::memory_order_release);
  const std::lock_guard guard(local.mutex);
  return {slot, local.by_place[{device_, slot}]};
}

void Directory::give_back(std::uint32_t slot) noexcept {
  auto& local = local_inboxes();
  {
    const std::lock_guard guard(local.mutex);
    local.by_place.erase({device_, slot});
  }
  if (table_ == nullptr) return;
  FileLock lock(table_fd_);
  unlink(inbox_path(device_, slot).c_str());
  unlink(wake_path(device_, slot).c_str());
  table_->engines[slot] = {};
}

std::shared_ptr<InboxMapping> Directory::open_inbox(std::uint32_t device, std::uint32_t slot) {
  auto& local = local_inboxes();
  {
    const std::lock_guard guard(local.mutex);
    if (const auto found = local.by_place.find({device, slot}); found != local.by_place.end())
      return found->second;
  }
  if (wire_ == Wire::in_process) return nullptr;
  const int fd = ::open(inbox_path(device, slot).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return nullptr;
  struct stat info {};
  if (fstat(fd, &info) != 0 || static_cast<std::size_t>(info.st_size) != sizeof(Inbox)) {
    ::close(fd);
    return nullptr;
  }
  void* memory = mmap(nullptr, sizeof(Inbox), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    ::close(fd);
    return nullptr;
  }
  auto mapping = std::make_shared<InboxMapping>(static_cast<Inbox*>(memory), fd);
  return mapping->is_attended() ? mapping : nullptr;
}

void Directory::bury(std::uint32_t device, std::uint32_t slot) noexcept {
  // Another device's table is swept by its own next user; its inbox can go at once.
  if (table_ == nullptr) return;
  if (device != device_) {
    if (open_inbox(device, slot) != nullptr) return;  // another engine has its place already
    unlink(inbox_path(device, slot).c_str());
    unlink(wake_path(device, slot).c_str());
    return;
  }
  FileLock lock(table_fd_);
  sweep();
}

int Directory::make_wake_fd(std::uint32_t slot) noexcept {
  if (wire_ == Wire::in_process) return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const std::string path = wake_path(device_, slot);
  if (mkfifo(path.c_str(), 0600) != 0 && errno != EEXIST) return -1;
  return ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
}

void Directory::wake(std::uint32_t device, std::uint32_t slot, Inbox& inbox,
                     bool same_process) const noexcept {
  const std::uint64_t one = 1;
  if (same_process) {
    [[maybe_unused]] const ssize_t written =
        write(inbox.header.wake_fd.load(std::memory_order_acquire), &one, sizeof one);
    return;
  }
  const int fd = ::open(wake_path(device, slot).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t written = write(fd, &one, sizeof one);
  ::close(fd);
}

}  // namespace pollen::soft
