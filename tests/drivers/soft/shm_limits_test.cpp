// Shared memory that is full or read-only. In a mount namespace of its own, which takes root.
#include <sched.h>
#include <sys/mount.h>

#include <string>

#include "pollen/base/error.hpp"
#include "process_rig.hpp"
#include "raw_rig.hpp"

using namespace rig;

namespace {

constexpr int not_allowed = 77;

// Runs the body in a child that sees a tmpfs with these options at `dir`. False: that is not allowed.
bool on_tmpfs(const TempDir& dir, const std::string& mount_options, const std::function<int()>& body,
              unsigned long flags = 0) {
  Child child([&](Talk) -> int {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("pollen-test", dir.path().c_str(), "tmpfs", flags, mount_options.c_str()) != 0)
      return not_allowed;
    return body();
  });
  const int code = child.wait();
  if (code == not_allowed) {
    MESSAGE("skipped: a filesystem of a given size (needs root and CAP_SYS_ADMIN)");
    return false;
  }
  CHECK(code == 0);
  return true;
}

int expect_error(const std::function<void()>& action, const char* words) {
  try {
    action();
  } catch (const Error& error) {
    CHILD_REQUIRE(!error.text().remedy.empty());
    if (std::string(error.what()).find(words) != std::string::npos) return 0;
    std::fprintf(stderr, "child: %s\n", error.what());
    return 2;
  }
  std::fprintf(stderr, "child: it went well\n");
  return 3;
}

}  // namespace

TEST_SUITE("soft.shm.limits") {
  TEST_CASE("a filesystem without room for the table, an inbox or a lane is a sentence each time") {
    TempDir dir;
    const soft::SoftOptions wire = shared_memory(dir);
    const auto open = [&] { return soft::make_driver(wire)->open(""); };
    if (!on_tmpfs(dir, "size=4k,mode=0700", [&] { return expect_error([&] { open(); }, "is full"); })) return;
    on_tmpfs(dir, "size=64k,mode=0700", [&] {
      auto device = open();
      const int result = expect_error([&] { device->open_port(); }, "is full");
      CHILD_REQUIRE(dir.files() == std::vector<std::string>{"soft0"});
      return result;
    });
    on_tmpfs(dir, "size=1000k,mode=0700", [&] {
      auto device = open();
      End a(*device, QpOptions{});
      End b(*device, QpOptions{});
      driver::RtrConfig rtr{.path = {}, .mtu_bytes = 1024};
      rtr.path.remote_gid = b.gid;
      rtr.remote_qpn = b.qp().qpn();
      a.qp().control().to_init({});
      return expect_error([&] { a.qp().control().to_rtr(rtr); }, "is full");
    });
  }

  TEST_CASE("a datagram to a new peer is dropped when there is no room for a lane, and the program goes on") {
    TempDir dir;
    const soft::SoftOptions wire = shared_memory(dir);
    on_tmpfs(dir, "size=1000k,mode=0700", [&]() -> int {
      auto device = soft::make_driver(wire)->open("");
      QpOptions options;
      options.config.transport = driver::Transport::ud;
      End a(*device, options);
      End b(*device, options);
      a.qp().activate(options.init);
      b.qp().activate(options.init);
      driver::PathConfig path;
      path.remote_gid = b.gid;
      path.local_gid_index = 1;
      a.qp().send_burst().send_to(a.port->create_address(*a.pd, path, b.qp().qpn(), options.init.qkey),
                                  a.sge(0, 8));
      for (int i = 0; i < 1000; ++i) a.turn();
      CHILD_REQUIRE(a.sent.size() == 1 && a.sent[0].ok());
      return 0;
    });
  }

  TEST_CASE("a read-only filesystem is a sentence") {
    TempDir dir;
    const soft::SoftOptions wire = shared_memory(dir);
    on_tmpfs(
        dir, "size=1m,mode=0700",
        [&] { return expect_error([&] { soft::make_driver(wire)->open(""); }, "read-only"); }, MS_RDONLY);
  }
}
