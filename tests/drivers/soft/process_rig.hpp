// Real processes for tests: forked before they make anything, with a socket between parent and child,
// and a directory of their own for shared memory.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "rig.hpp"

namespace rig {

class TempDir {
 public:
  TempDir() {
    // In memory where that can be: an inbox on a disk takes its time.
    for (const char* base : {"/dev/shm", "/tmp"}) {
      path_ = std::string(base) + "/pollen-soft-XXXXXX";
      if (mkdtemp(path_.data()) != nullptr) return;
    }
    std::abort();
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  bool holds(const std::string& name) const { return std::filesystem::exists(file(name)); }

 private:
  std::string path_;
};

inline bool within(std::chrono::milliseconds limit, const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!done())
    if (std::chrono::steady_clock::now() > end) return false;
  return true;
}

// One end of the socket between the two. Throws when the other side is silent for ten seconds or gone.
class Talk {
 public:
  explicit Talk(int fd) : fd_(fd) {}
  template <typename T>
  void send(const T& value) const {
    if (::send(fd_, &value, sizeof value, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof value))
      throw std::runtime_error("the other process is gone");
  }
  template <typename T>
  T receive() const {
    T value;
    pollfd wait{fd_, POLLIN, 0};
    if (poll(&wait, 1, 10'000) != 1 ||
        recv(fd_, &value, sizeof value, MSG_WAITALL) != static_cast<ssize_t>(sizeof value))
      throw std::runtime_error("the other process says nothing");
    return value;
  }
  bool pending() const {
    pollfd wait{fd_, POLLIN, 0};
    return poll(&wait, 1, 0) == 1;
  }

 private:
  int fd_;
};

class Child {
 public:
  // The body's result is the exit code; an exception is written to stderr and gives 99.
  explicit Child(const std::function<int(Talk)>& body) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ < 0) std::abort();
    if (pid_ == 0) {
      close(fds[0]);
      // What doctest would do with a crash belongs to the parent.
      for (const int number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGTERM}) signal(number, SIG_DFL);
      int code = 99;
      try {
        code = body(Talk(fds[1]));
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
      }
      std::fflush(nullptr);
      _exit(code);
    }
    close(fds[1]);
    fd_ = fds[0];
  }
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(fd_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  Talk talk() const { return Talk(fd_); }
  void kill(int number) const { ::kill(pid_, number); }
  // Exit code; 1000 + signal when one ended it; -1 when it does not end in time.
  int wait(std::chrono::milliseconds limit = std::chrono::seconds(30),
           const std::function<void()>& meanwhile = {}) {
    int status = 0;
    if (!within(limit, [&] {
          if (meanwhile) meanwhile();
          if (waitpid(pid_, &status, WNOHANG) == pid_) return true;
          if (!meanwhile) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          return false;
        }))
      return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
};

// For a child's body: nonzero is the line that failed.
#define CHILD_REQUIRE(condition)                                                            \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      std::fprintf(stderr, "child: %s:%d: %s is not so\n", __FILE__, __LINE__, #condition); \
      return 1;                                                                             \
    }                                                                                       \
  } while (false)

struct PeerInfo {
  driver::Gid gid;
  std::uint32_t qpn;
  std::uint64_t address;
  std::uint32_t rkey;
};

inline soft::SoftOptions shared_memory(const TempDir& dir) {
  soft::SoftOptions options;
  options.shm_dir = dir.path();
  return options;
}

inline PeerInfo info_of(End& end) {
  return {end.gid, end.qp().qpn(), reinterpret_cast<std::uint64_t>(end.memory.data()), end.region->rkey()};
}

inline void connect_to(End& end, queue::Qp& qp, const PeerInfo& peer, const QpOptions& options) {
  driver::RtrConfig rtr = options.rtr;
  rtr.path.remote_gid = peer.gid;
  rtr.path.local_gid_index = 1;
  rtr.remote_qpn = peer.qpn;
  qp.connect(options.init, rtr, options.rts);
  static_cast<void>(end);
}

// Both sides at once: tells the peer who this is, hears who it is, connects, and waits for it.
inline PeerInfo meet(End& end, Talk talk, const QpOptions& options) {
  talk.send(info_of(end));
  const auto peer = talk.receive<PeerInfo>();
  connect_to(end, end.qp(), peer, options);
  talk.send(char{1});
  talk.receive<char>();
  return peer;
}

}  // namespace rig
