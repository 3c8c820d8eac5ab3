// Why a device can't be had, on machines that are made up of files.
#include "pollen/drivers/verbs/discovery.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "pollen/drivers/verbs/context.hpp"

using namespace pollen;
namespace fs = std::filesystem;

namespace {

struct Machine {
  Machine() : root(fs::temp_directory_path() / fs::path("pollen-machine-XXXXXX")) {
    std::string name = root;
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root = name;
  }
  ~Machine() { fs::remove_all(root); }
  void file(const std::string& path, const std::string& text) const {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text << '\n';
  }
  fs::path root;
};

bool holds(const std::string& sentence, const std::string& words) {
  return sentence.find(words) != std::string::npos;
}

}  // namespace

TEST_SUITE("verbs.discovery") {
  TEST_CASE("no device, no ib_uverbs, no node and no provider are different sentences") {
    const Machine none;
    CHECK(holds(verbs::why_no_device(none.root).why, "no RDMA device"));

    const Machine unloaded;
    unloaded.file("sys/class/infiniband/rxe0/node_type", "1: CA");
    CHECK(holds(verbs::why_no_device(unloaded.root).why, "ib_uverbs is not loaded"));
    CHECK(holds(verbs::why_no_device(unloaded.root).remedy, "modprobe ib_uverbs"));

    const Machine bare;
    bare.file("sys/class/infiniband/rxe0/node_type", "1: CA");
    bare.file("sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0");
    CHECK(holds(verbs::why_no_device(bare.root).why, "node /dev/infiniband/uverbs0 is missing"));
    CHECK(holds(verbs::why_no_device(bare.root).remedy, "--device=/dev/infiniband/uverbs0"));

    const Machine unknown;
    unknown.file("sys/class/infiniband/rxe0/node_type", "1: CA");
    unknown.file("sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0");
    unknown.file("dev/infiniband/uverbs0", "");
    CHECK(holds(verbs::why_no_device(unknown.root).remedy, "ibverbs-providers"));
  }

  TEST_CASE("a device without its node, or without the right to it, says which node it is") {
    const Machine machine;
    machine.file("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0");
    machine.file("sys/class/infiniband_verbs/uverbs3/ibdev", "rxe0");
    const Error missing = verbs::not_opened("rxe0", ENODEV, machine.root);
    MESSAGE(std::string(missing.what()));
    CHECK(holds(missing.what(), "its node /dev/infiniband/uverbs3 is not"));
    CHECK(holds(missing.what(), "--device=/dev/infiniband/uverbs3"));

    machine.file("dev/infiniband/uverbs3", "");
    CHECK(holds(verbs::not_opened("rxe0", EACCES, machine.root).what(),
                "may not open /dev/infiniband/uverbs3"));
    CHECK(holds(verbs::not_opened("rxe0", EIO, machine.root).what(), "/dev/infiniband/uverbs3"));
    CHECK(holds(verbs::not_opened("siw0", ENODEV, machine.root).what(), "has just gone"));
  }

  TEST_CASE("a device's label says what drives it, and its port's interface is known") {
    const Machine machine;
    machine.file("sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0", "eth0");
    machine.file("sys/class/infiniband/bnxt_re0/node_type", "1: CA");
    fs::create_directories(machine.root / "sys/bus/bnxt_en");
    fs::create_directories(machine.root / "sys/class/infiniband/bnxt_re0/device");
    fs::create_directory_symlink(machine.root / "sys/bus/bnxt_en",
                                 machine.root / "sys/class/infiniband/bnxt_re0/device/driver");
    CHECK(holds(verbs::description_of("rxe0", false, machine.root), "not a NIC"));
    CHECK(holds(verbs::description_of("bnxt_re0", false, machine.root), "bnxt_en"));
    CHECK(verbs::network_interface("rxe0", 1, machine.root) == "eth0");
    CHECK(verbs::network_interface("bnxt_re0", 1, machine.root).empty());
  }
}
