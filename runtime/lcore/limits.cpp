#include "pollen/lcore/limits.hpp"

#include <fmt/format.h>

#include <charconv>

#include "pollen/lcore/cgroup.hpp"

namespace pollen::lcore {

namespace {

// The nearest level that has the file: in v2 a controller may be off in the leaf, in which case the
// parent's setting holds.
std::optional<CpuLimit> cpuset_limit(const Host& host) {
  const auto cgroup = find_cgroup(host, "cpuset");
  if (!cgroup) return std::nullopt;
  const bool v2 = cgroup->version == 2;
  const std::string_view effective = v2 ? "cpuset.cpus.effective" : "cpuset.effective_cpus";
  for (const CgroupLevel& level : cgroup->levels) {
    // Kernels without the effective file have only the configured one.
    for (const std::string_view file : {effective, std::string_view("cpuset.cpus")}) {
      const auto cpus = host.read_cpus(fmt::format("{}/{}", level.directory, file));
      if (!cpus || cpus->empty()) continue;
      return CpuLimit{*cpus,
                      fmt::format("not in {} of cgroup {} (v{}), which is {}", file, level.name,
                                  cgroup->version, cpus->list()),
                      fmt::format("widen {}/cpuset.cpus", level.directory)};
    }
  }
  return std::nullopt;
}

std::optional<long long> to_number(std::string_view text) {
  long long value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{} || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<Quota> quota_at(const Host& host, const CgroupLevel& level, unsigned version) {
  std::optional<long long> quota_us;
  std::optional<long long> period_us;
  std::string file;
  if (version == 2) {
    file = "cpu.max";
    const std::string text =
        host.read(level.directory + "/cpu.max").value_or("");  // "250000 100000", "max 100000"
    const auto blank = text.find(' ');
    if (blank == std::string::npos) return std::nullopt;
    quota_us = to_number(std::string_view(text).substr(0, blank));
    period_us = to_number(std::string_view(text).substr(blank + 1));
  } else {
    file = "cpu.cfs_quota_us/cfs_period_us";
    quota_us = host.read_number(level.directory + "/cpu.cfs_quota_us");  // -1: none
    period_us = host.read_number(level.directory + "/cpu.cfs_period_us");
  }
  if (!quota_us || !period_us || *quota_us <= 0 || *period_us <= 0) return std::nullopt;
  return Quota{
      static_cast<double>(*quota_us) / static_cast<double>(*period_us),
      fmt::format("{} of cgroup {} (v{}) is {} {}", file, level.name, version, *quota_us, *period_us)};
}

std::optional<Quota> tightest_quota(const Host& host) {
  const auto cgroup = find_cgroup(host, "cpu");
  if (!cgroup) return std::nullopt;
  std::optional<Quota> tightest;
  for (const CgroupLevel& level : cgroup->levels) {
    auto quota = quota_at(host, level, cgroup->version);
    if (quota && (!tightest || quota->cpus < tightest->cpus)) tightest = std::move(quota);
  }
  return tightest;
}

}  // namespace

std::vector<Refusal> Limits::refusals(const CpuSet& asked) const {
  std::vector<Refusal> out;
  CpuSet left = asked;
  for (const CpuLimit& limit : cpu_limits) {
    const CpuSet refused = left - limit.cpus;
    if (refused.empty()) continue;
    out.push_back({refused, limit.why, limit.remedy});
    left = left - refused;
  }
  return out;
}

Limits read_limits(const Host& host) {
  Limits out;
  if (const auto present = host.read_cpus("/sys/devices/system/cpu/present")) {
    out.cpu_limits.push_back(
        {*present,
         fmt::format("there is no such CPU, /sys/devices/system/cpu/present says {}", present->list()), ""});
  }
  if (const auto online = host.read_cpus("/sys/devices/system/cpu/online")) {
    out.cpu_limits.push_back({*online,
                              fmt::format("offline, /sys/devices/system/cpu/online says {}", online->list()),
                              "bring it online: echo 1 > /sys/devices/system/cpu/cpuN/online"});
  }
  if (auto cpuset = cpuset_limit(host)) out.cpu_limits.push_back(std::move(*cpuset));
  const CpuSet affinity = host.affinity();
  out.cpu_limits.push_back(
      {affinity,
       fmt::format("not in the affinity mask that this process was started with, which is {}",
                   affinity.list()),
       "start it without taskset or numactl, or with a wider mask"});

  out.allowed = affinity;
  for (const CpuLimit& limit : out.cpu_limits) out.allowed = out.allowed & limit.cpus;
  out.quota = tightest_quota(host);
  return out;
}

}  // namespace pollen::lcore
