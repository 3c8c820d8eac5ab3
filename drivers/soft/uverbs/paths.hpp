// Which of the program's paths lead to the device instead of to where they say.
//
//   /sys/class/infiniband*, /sys/class/misc/rdma_cm    the tree of sysfs_tree.hpp
//   /dev/infiniband/uverbs0                            /dev/null: a character device, as is wanted
//   /dev/infiniband/rdma_cm                            the same, as far as it is only looked at
//   all else under /dev/infiniband                     nothing, be there a real device or not
#pragma once

#include <climits>

namespace pollen::soft::uverbs {

enum class PathKind { other, redirected, uverbs, cm, absent };

// Fills `out` for redirected, uverbs and cm.
PathKind look_up(const char* path, char (&out)[PATH_MAX]) noexcept;

}  // namespace pollen::soft::uverbs
