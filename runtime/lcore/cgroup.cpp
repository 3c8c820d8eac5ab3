#include "pollen/lcore/cgroup.hpp"

namespace pollen::lcore {

namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  for (;;) {
    const auto at = text.find(separator);
    out.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return out;
    text.remove_prefix(at + 1);
  }
}

bool has_word(std::string_view list, std::string_view word) {
  for (const auto each : split(list, ',')) {
    if (each == word) return true;
  }
  return false;
}

// mountinfo writes blanks and backslashes in octal: \040.
std::string unescape(std::string_view text) {
  auto octal = [](char c) { return c >= '0' && c <= '7'; };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && octal(text[i + 1]) && octal(text[i + 2]) &&
        octal(text[i + 3])) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

struct Membership {
  unsigned version;
  std::string path;
};

// A controller is on v1 if a v1 hierarchy claims it, else on the unified one (the line "0::").
std::optional<Membership> find_membership(const std::string& proc_cgroup, std::string_view controller) {
  std::optional<Membership> unified;
  for (const auto line : split(proc_cgroup, '\n')) {
    const auto first = line.find(':');
    const auto second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const auto controllers = line.substr(first + 1, second - first - 1);
    const std::string path(line.substr(second + 1));
    if (has_word(controllers, controller)) return Membership{1, path};
    if (line.starts_with("0::")) unified = Membership{2, path};
  }
  return unified;
}

struct Mount {
  std::string root;   // the cgroup that the mount point shows
  std::string point;  // where it shows it
};

std::vector<Mount> find_mounts(const std::string& mountinfo, unsigned version, std::string_view controller) {
  std::vector<Mount> out;
  for (const auto line : split(mountinfo, '\n')) {
    const auto separator = line.find(" - ");
    if (separator == std::string_view::npos) continue;
    const auto before = split(line.substr(0, separator), ' ');
    const auto after = split(line.substr(separator + 3), ' ');
    if (before.size() < 5 || after.size() < 3) continue;
    const bool wanted =
        version == 2 ? after[0] == "cgroup2" : after[0] == "cgroup" && has_word(after[2], controller);
    if (wanted) out.push_back({unescape(before[3]), unescape(before[4])});
  }
  return out;
}

std::string without_slash(std::string path) {
  if (path.ends_with('/')) path.pop_back();
  return path;
}

bool only_parents(std::string_view path) {  // "/..", "/../.."
  while (path.starts_with("/..")) path.remove_prefix(3);
  return path.empty();
}

bool has_parents(std::string_view path) {
  for (const auto each : split(path, '/')) {
    if (each == "..") return true;
  }
  return false;
}

// The way from the mount's root to the process's cgroup: "" or "/a/b". In a cgroup namespace both
// are relative to the namespace's own root and may climb out of it with "..".
std::optional<std::string> below(const std::string& root, const std::string& path) {
  if (path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '/')) {
    std::string rest = path.substr(root.size());
    if (has_parents(rest)) return std::nullopt;  // outside of what is mounted
    return rest;
  }
  // The mount shows an ancestor; which of its children is ours has no name in here. The ancestor's
  // own limits hold all the same.
  if (only_parents(root) && !has_parents(path)) return "";
  return std::nullopt;
}

std::vector<CgroupLevel> levels_of(const std::string& root, const std::string& point, std::string rest) {
  std::vector<CgroupLevel> out;
  for (;;) {
    const std::string name = root + rest;
    const std::string directory = point + rest;
    out.push_back({name.empty() ? "/" : name, directory.empty() ? "/" : directory});
    if (rest.empty()) return out;
    rest.erase(rest.rfind('/'));
  }
}

}  // namespace

std::optional<Cgroup> find_cgroup(const Host& host, std::string_view controller) {
  const auto membership = find_membership(host.read("/proc/self/cgroup").value_or(""), controller);
  if (!membership) return std::nullopt;
  const std::string path = without_slash(membership->path);

  std::optional<Cgroup> second_best;
  const std::string mountinfo = host.read("/proc/self/mountinfo").value_or("");
  for (const Mount& mount : find_mounts(mountinfo, membership->version, controller)) {
    const std::string root = without_slash(mount.root);
    const auto rest = below(root, path);
    if (!rest) continue;
    Cgroup found{membership->version, levels_of(root, without_slash(mount.point), *rest)};
    if (host.exists(found.levels.front().directory)) return found;
    if (!second_best) second_best = std::move(found);
  }
  return second_best;
}

}  // namespace pollen::lcore
