#include "pollen/drivers/soft/uverbs/sysfs_tree.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "pollen/base/error.hpp"
#include "pollen/drivers/soft/directory.hpp"
#include "pollen/drivers/soft/uverbs/device_facts.hpp"
#include "pollen/drivers/soft/uverbs/libc.hpp"

namespace pollen::soft::uverbs {

namespace {

// Part of the directory's name: another release may write other files.
constexpr int tree_version = 1;

void put(const std::string& root, const std::string& path, const std::string& text) {
  const std::string file = root + "/" + path;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), ignored);
  const int fd = libc::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const std::string line = text + "\n";
  const bool written =
      fd >= 0 && libc::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const int reason = errno;
  if (fd >= 0) libc::close(fd);
  if (!written) throw Error(reason, {.attempted = "write what stands for /sys", .on = file});
}

std::string gid_text(const driver::Gid& gid) {
  std::string text;
  for (std::size_t i = 0; i < gid.bytes.size(); i += 2)
    text += fmt::format("{}{:02x}{:02x}", i == 0 ? "" : ":", gid.bytes[i], gid.bytes[i + 1]);
  return text;
}

std::string guid_text(std::uint64_t guid) {
  const std::uint64_t host = big_endian(guid);
  return fmt::format("{:04x}:{:04x}:{:04x}:{:04x}", host >> 48, host >> 32 & 0xffff, host >> 16 & 0xffff,
                     host & 0xffff);
}

void write_tree(const std::string& root, std::uint32_t device) {
  put(root, "class/infiniband_verbs/abi_version", "6");
  put(root, "class/misc/rdma_cm/abi_version", "4");
  const std::string uverbs = "class/infiniband_verbs/uverbs0/";
  put(root, uverbs + "ibdev", "mlx5_0");
  put(root, uverbs + "abi_version", "1");
  put(root, uverbs + "dev", "1:3");  // /dev/null, which stands for the device's node
  const std::string ib = "class/infiniband/mlx5_0/";
  const std::string guid = guid_text(facts::node_guid(device));
  put(root, ib + "node_type", "1: CA");
  put(root, ib + "node_guid", guid);
  put(root, ib + "sys_image_guid", guid);
  put(root, ib + "node_desc", fmt::format("Pollen software NIC soft{}, not a real one", device));
  put(root, ib + "fw_ver", "16.0.0");
  put(root, ib + "hca_type", "Pollen software NIC");
  put(root, ib + "hw_rev", "0");
  put(root, ib + "board_id", "POLLEN_SOFT");
  const std::string pci = ib + "device/";
  put(root, pci + "modalias",
      fmt::format("pci:v000015B3d{:08X}sv000015B3sd00000001bc02sc00i00", facts::part_id));
  put(root, pci + "vendor", "0x15b3");
  put(root, pci + "device", fmt::format("{:#06x}", facts::part_id));
  put(root, pci + "numa_node", "-1");
  put(root, pci + "infiniband_verbs/uverbs0/dev", "1:3");
  put(root, pci + "net/lo/ifindex", "1");
  const std::string port = ib + "ports/1/";
  put(root, port + "state", "4: ACTIVE");
  put(root, port + "phys_state", "5: LinkUp");
  put(root, port + "rate", "100 Gb/sec (4X EDR)");
  put(root, port + "link_layer", "Ethernet");
  put(root, port + "lid", "0x0");
  put(root, port + "sm_lid", "0x0");
  put(root, port + "sm_sl", "0");
  put(root, port + "lid_mask_count", "0");
  put(root, port + "cap_mask", fmt::format("{:#010x}", facts::port_cap_flags));
  put(root, port + "pkeys/0", "0xffff");
  for (std::uint32_t index = 0; index < 2; ++index) {
    put(root, port + fmt::format("gids/{}", index), gid_text(device_gid(device, index)));
    put(root, port + fmt::format("gid_attrs/types/{}", index), "RoCE v2");
    put(root, port + fmt::format("gid_attrs/ndevs/{}", index), "lo");
  }
}

}  // namespace

std::string make_sysfs_tree(std::uint32_t device) {
  const char* set = std::getenv("POLLEN_SHM_DIR");
  const std::string dir = set != nullptr && *set != 0 ? set : fmt::format("/dev/shm/pollen-{}", geteuid());
  if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST)
    throw Error(errno, {.attempted = "make a directory for what stands for /sys",
                        .on = dir,
                        .remedy = "Make it writable, or set POLLEN_SHM_DIR to a directory that is"});
  const std::string root = fmt::format("{}/softmlx5.{}.soft{}", dir, tree_version, device);
  struct stat info {};
  if (stat((root + "/class/infiniband/mlx5_0/ports/1/gids/1").c_str(), &info) == 0) return root;
  // Written aside and moved into place, so that nobody sees half of it.
  const std::string aside = fmt::format("{}.{}", root, getpid());
  write_tree(aside, device);
  if (rename(aside.c_str(), root.c_str()) != 0) {
    std::error_code ignored;
    std::filesystem::remove_all(aside, ignored);  // somebody else was faster
  }
  return root;
}

}  // namespace pollen::soft::uverbs
