#include "pollen/net/port_holder.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

namespace pollen::net {

namespace {

namespace fs = std::filesystem;

struct Listening {
  std::string inode;
  std::string uid;
};

std::optional<std::uint16_t> hex_port(std::string_view local) {
  const std::size_t colon = local.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(local.data() + colon + 1, local.data() + local.size(), port, 16);
  if (error != std::errc{} || end != local.data() + local.size()) return std::nullopt;
  return port;
}

// Columns of /proc/net/tcp: sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode
std::vector<Listening> listening(std::uint16_t port, const fs::path& table) {
  constexpr std::string_view listen_state = "0A";
  std::vector<Listening> found;
  std::ifstream in(table);
  for (std::string line; std::getline(in, line);) {
    std::istringstream columns(line);
    std::array<std::string, 10> column;
    for (std::string& text : column) columns >> text;
    if (columns && column[3] == listen_state && hex_port(column[1]) == port)
      found.push_back({.inode = column[9], .uid = column[7]});
  }
  return found;
}

bool holds(const fs::path& process, const std::string& link) {
  std::error_code error;
  for (fs::directory_iterator fd(process / "fd", error), end; !error && fd != end; fd.increment(error)) {
    std::error_code unreadable;
    if (fs::read_symlink(fd->path(), unreadable) == link) return true;
  }
  return false;
}

std::string holder_of(const Listening& socket, const fs::path& proc) {
  const std::string link = fmt::format("socket:[{}]", socket.inode);
  std::error_code error;
  for (fs::directory_iterator process(proc, error), end; !error && process != end; process.increment(error)) {
    const std::string pid = process->path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos || !holds(process->path(), link)) continue;
    std::string program;
    std::getline(std::ifstream(process->path() / "comm"), program);
    return fmt::format("{} (pid {})", program.empty() ? "a program" : program, pid);
  }
  return fmt::format("a process of user {}", socket.uid);
}

}  // namespace

std::string port_holder(std::uint16_t port, const fs::path& proc) {
  for (const char* table : {"net/tcp", "net/tcp6"}) {
    const std::vector<Listening> found = listening(port, proc / table);
    if (!found.empty()) return holder_of(found.front(), proc);
  }
  return {};
}

}  // namespace pollen::net
