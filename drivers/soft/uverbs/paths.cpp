#include "pollen/drivers/soft/uverbs/paths.hpp"

#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include "pollen/drivers/soft/uverbs/options.hpp"
#include "pollen/drivers/soft/uverbs/sysfs_tree.hpp"

namespace pollen::soft::uverbs {

namespace {

constexpr std::string_view redirected[] = {"/sys/class/infiniband_verbs", "/sys/class/infiniband_mad",
                                           "/sys/class/infiniband_cm", "/sys/class/infiniband",
                                           "/sys/class/misc/rdma_cm"};
constexpr std::string_view nodes = "/dev/infiniband";

bool is_under(std::string_view path, std::string_view dir) noexcept {
  return path.starts_with(dir) && (path.size() == dir.size() || path[dir.size()] == '/');
}

// Empty, with a word on stderr, when it can't be made.
const std::string& root() noexcept {
  static const std::string made = []() noexcept -> std::string {
    try {
      return make_sysfs_tree(Options::get().device);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "softmlx5: %s\n", error.what());
      return {};
    }
  }();
  return made;
}

}  // namespace

PathKind look_up(const char* path, char (&out)[PATH_MAX]) noexcept {
  if (path == nullptr || path[0] != '/' || (path[1] != 's' && path[1] != 'd')) return PathKind::other;
  const std::string_view text(path);
  if (is_under(text, nodes)) {
    if (text != "/dev/infiniband/uverbs0" && text != "/dev/infiniband/rdma_cm") return PathKind::absent;
    std::strcpy(out, "/dev/null");
    return text.ends_with("rdma_cm") ? PathKind::cm : PathKind::uverbs;
  }
  for (const std::string_view dir : redirected) {
    if (!is_under(text, dir)) continue;
    const std::string& tree = root();
    const std::string_view rest = text.substr(std::string_view("/sys").size());
    if (tree.empty() || tree.size() + rest.size() >= sizeof out) return PathKind::absent;
    std::memcpy(out, tree.data(), tree.size());
    std::memcpy(out + tree.size(), rest.data(), rest.size());
    out[tree.size() + rest.size()] = 0;
    return PathKind::redirected;
  }
  return PathKind::other;
}

}  // namespace pollen::soft::uverbs
