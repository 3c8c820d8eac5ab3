#include "pollen/lcore/host.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <fstream>

#include "pollen/base/error.hpp"
#include "pollen/lcore/affinity.hpp"

namespace pollen::lcore {

std::filesystem::path Host::beneath(std::string_view path) const {
  return root_ / std::filesystem::path(path).relative_path();
}

bool Host::exists(std::string_view path) const {
  std::error_code ignored;
  return std::filesystem::exists(beneath(path), ignored);
}

std::optional<std::string> Host::read(std::string_view path) const {
  constexpr std::size_t largest = std::size_t{16} << 20;  // a mountinfo of thousands of containers fits
  std::ifstream file(beneath(path), std::ios::binary);
  if (!file) return std::nullopt;
  std::string text;
  char chunk[4096];
  while (text.size() < largest && (file.read(chunk, sizeof chunk) || file.gcount() > 0)) {
    text.append(chunk, static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad()) return std::nullopt;
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

std::optional<CpuSet> Host::read_cpus(std::string_view path) const {
  const auto text = read(path);
  if (!text) return std::nullopt;
  // What some kernels print for a list that was never given.
  if (text->find("(null)") != std::string::npos) return CpuSet{};
  try {
    return CpuSet::parse_kernel_list(*text);
  } catch (const Error& error) {
    throw Error(EINVAL, {.attempted = fmt::format("make sense of {}", path), .why = error.what()});
  }
}

std::optional<long long> Host::read_number(std::string_view path) const {
  const auto text = read(path);
  if (!text) return std::nullopt;
  long long value = 0;
  const char* end = text->data() + text->size();
  const auto result = std::from_chars(text->data(), end, value);
  if (result.ec != std::errc{} || result.ptr != end) return std::nullopt;
  return value;
}

CpuSet Host::affinity() const {
  if (live()) return lcore::affinity();
  constexpr std::string_view key = "Cpus_allowed_list:";
  const std::string status = read("/proc/self/status").value_or("");
  const auto at = status.find(key);
  if (at == std::string::npos) {
    throw Error(ENOENT, {.attempted = "find the affinity mask",
                         .on = root_.string(),
                         .why = fmt::format("its /proc/self/status has no {} line", key)});
  }
  const auto start = at + key.size();
  return CpuSet::parse_kernel_list(std::string_view(status).substr(start, status.find('\n', start) - start));
}

}  // namespace pollen::lcore
