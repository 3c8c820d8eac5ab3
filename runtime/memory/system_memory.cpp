#include "system_memory.hpp"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace pollen::memory {

namespace {

std::optional<std::uint64_t> read_number(const std::string& path) {
  std::uint64_t value = 0;
  std::ifstream file(path);
  if (!(file >> value)) return std::nullopt;
  return value;
}

// The number behind "key:" in a line such as "Node 0 MemFree:   123 kB".
std::optional<std::uint64_t> kib_of(std::string_view line, std::string_view key) {
  const auto found = line.find(key);
  if (found == std::string_view::npos) return std::nullopt;
  const auto start = line.find_first_not_of(' ', found + key.size());
  if (start == std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(line.data() + start, line.data() + line.size(), value);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return value;
}

}  // namespace

std::optional<HugepageCount> hugepage_count(PageKind kind, int node) {
  const std::string pages = fmt::format("hugepages-{}kB", page_bytes(kind) / 1024);
  std::string directory = fmt::format("/sys/devices/system/node/node{}/hugepages/{}", node, pages);
  if (node < 0 || !std::filesystem::exists(directory)) {
    directory = "/sys/kernel/mm/hugepages/" + pages;
  }
  const auto total = read_number(directory + "/nr_hugepages");
  const auto free = read_number(directory + "/free_hugepages");
  if (!total || !free) return std::nullopt;
  return HugepageCount{*free, *total, directory + "/nr_hugepages"};
}

std::optional<std::uint64_t> available_bytes(int node) {
  std::uint64_t sum_kib = 0;
  bool found = false;
  const auto add = [&](const std::string& path, std::initializer_list<std::string_view> keys) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      for (const auto key : keys) {
        if (const auto kib = kib_of(line, key)) {
          sum_kib += *kib;
          found = true;
        }
      }
    }
  };
  if (node >= 0) {
    add(fmt::format("/sys/devices/system/node/node{}/meminfo", node),
        {" MemFree:", " Active(file):", " Inactive(file):", " SReclaimable:"});
  }
  if (!found) add("/proc/meminfo", {"MemAvailable:"});
  if (!found) return std::nullopt;
  return sum_kib * 1024;
}

std::string shared_transparent_mode() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string line;
  std::getline(file, line);
  const auto open = line.find('[');
  const auto close = line.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  return line.substr(open + 1, close - open - 1);
}

std::uint64_t transparent_bytes(const void* base) {
  const std::string start = fmt::format("{:x}-", std::bit_cast<std::uintptr_t>(base));
  std::ifstream file("/proc/self/smaps");
  bool ours = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(start)) {
      ours = true;
    } else if (ours) {
      if (const auto kib = kib_of(line, "ShmemPmdMapped:")) return *kib * 1024;
      if (line.find("VmFlags:") != std::string::npos) return 0;
    }
  }
  return 0;
}

}  // namespace pollen::memory
