#include "child.hpp"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <stdexcept>

namespace pollen::lcore {

Child::Child(const std::function<int(const Say&)>& body) {
  int fds[2];
  if (pipe(fds) != 0) throw std::runtime_error("pipe failed");
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    close(fds[0]);
    const Say say = [&fds](const std::string& line) {
      const std::string text = line + '\n';
      if (write(fds[1], text.data(), text.size()) != static_cast<ssize_t>(text.size())) _exit(98);
    };
    int code = 99;
    try {
      code = body(say);
    } catch (const std::exception& error) {
      say(error.what());
    }
    _exit(code);
  }
  close(fds[1]);
  read_fd_ = fds[0];
}

Child::~Child() {
  if (pid_ > 0) {
    kill(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(read_fd_);
}

std::optional<std::string> Child::hear() {
  std::string line;
  for (;;) {
    pollfd waiting{.fd = read_fd_, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, 10'000) != 1) return std::nullopt;
    char c = 0;
    if (read(read_fd_, &c, 1) != 1) return std::nullopt;
    if (c == '\n') return line;
    line += c;
  }
}

int Child::finish() {
  for (int tries = 0; tries < 10'000; ++tries) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    const timespec ms{.tv_sec = 0, .tv_nsec = 1'000'000};
    nanosleep(&ms, nullptr);
  }
  return -1;
}

void Child::kill(int signal) const { ::kill(pid_, signal); }

}  // namespace pollen::lcore
