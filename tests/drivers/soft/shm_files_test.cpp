// What engines leave in the directory for shared memory, and what that may be like.
#include <fstream>

#include "pollen/base/error.hpp"
#include "process_rig.hpp"
#include "raw_rig.hpp"

using namespace rig;

TEST_SUITE("soft.shm.files") {
  TEST_CASE("what a crash has left is cleaned at the next start, and what lives stays") {
    TempDir dir;
    const soft::SoftOptions wire = shared_memory(dir);
    const auto holder = [&](Talk talk) -> int {
      auto driver = soft::make_driver(wire);
      auto device = driver->open("");
      std::vector<std::unique_ptr<driver::Port>> ports;
      for (int i = 0; i < 3; ++i) ports.push_back(device->open_port());
      for (auto& port : ports) port->arm();
      talk.send(char{1});
      talk.receive<char>();
      return 0;
    };
    Child dead(holder);
    dead.talk().receive<char>();
    Child alive(holder);
    alive.talk().receive<char>();
    CHECK(dir.files().size() == 1 + 2 * 6);
    dead.kill(SIGKILL);
    dead.wait();
    auto device = soft::make_driver(wire)->open("");
    CHECK(dir.files() == std::vector<std::string>{"soft0", "soft0.3", "soft0.3.wake", "soft0.4",
                                                  "soft0.4.wake", "soft0.5", "soft0.5.wake"});
    alive.talk().send(char{1});
    CHECK(alive.wait() == 0);
    CHECK(dir.files() == std::vector<std::string>{"soft0"});
  }

  TEST_CASE("a hundred engines leave nothing, and their places are taken again") {
    TempDir dir;
    auto device = soft::make_driver(shared_memory(dir))->open("");
    for (int round = 0; round < 3; ++round) {
      std::vector<std::unique_ptr<End>> ends;
      for (std::uint32_t i = 0; i < 100; ++i) {
        ends.push_back(std::make_unique<End>(*device, QpOptions{}, 4096));
        CHECK((ends.back()->qp().qpn() >> 14) == i);
      }
      CHECK(dir.files().size() == 101);
    }
    CHECK(dir.files() == std::vector<std::string>{"soft0"});
  }

  TEST_CASE("the devices of both wires, and of two directories, work side by side in one process") {
    TempDir first_dir;
    TempDir second_dir;
    const QpOptions options;
    Pair one(options, in_process());
    Pair two(options, shared_memory(first_dir));
    Pair three(options, shared_memory(second_dir));
    CHECK(first_dir.files().size() == 3);
    CHECK(second_dir.files().size() == 3);
    for (Pair* pair : {&one, &two, &three}) {
      pair->a.fill(0, 5000, 9);
      pair->a.qp().send_burst().write(pair->a.sge(0, 5000), pair->b.remote(0));
      REQUIRE(pair->until([&] { return !pair->a.sent.empty(); }));
      CHECK(pair->a.sent[0].ok());
      CHECK(pair->b.holds(0, 5000, 9));
    }
    // One more comes, and goes.
    { End extra(*two.device, options); }
    for (Pair* pair : {&one, &two, &three}) {
      pair->a.sent.clear();
      queue::Qp& a = pair->a.add_qp(options);
      queue::Qp& b = pair->b.add_qp(options);
      connect(pair->a, a, pair->b, b, options);
      a.send_burst().write(pair->a.sge(0, 5000), pair->b.remote(0));
      REQUIRE(pair->until([&] { return !pair->a.sent.empty(); }));
      CHECK(pair->a.sent[0].ok());
    }
  }

  TEST_CASE("an engine that took a dead one's place keeps its file when peers bury the dead one") {
    TempDir dir;
    const QpOptions options;
    auto driver = soft::make_driver(shared_memory(dir));
    auto first = driver->open("soft0");
    auto second = driver->open("soft1");
    End a(*first, options);
    auto b = std::make_unique<End>(*second, options);
    connect(a, a.qp(), *b, b->qp(), options);
    b.reset();
    b = std::make_unique<End>(*second, options);
    REQUIRE(dir.holds("soft1.0"));
    within(std::chrono::milliseconds(200), [&] {
      a.turn();
      return false;
    });
    CHECK(dir.holds("soft1.0"));
  }

  TEST_CASE(
      "a directory that can't be used is refused in a sentence with the way out, and no descriptor is lost") {
    const auto open_descriptors = [] {
      std::size_t count = 0;
      for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
      return count;
    };
    const auto refused = [&](const std::string& path, const char* words) {
      soft::SoftOptions wire;
      wire.shm_dir = path;
      const std::size_t before = open_descriptors();
      try {
        auto device = soft::make_driver(wire)->open("");
        FAIL_CHECK("it was opened");
      } catch (const Error& error) {
        CAPTURE(std::string(error.what()));
        CHECK(std::string(error.what()).find(words) != std::string::npos);
        CHECK(std::string(error.what()).find(path) != std::string::npos);
        CHECK_FALSE(error.text().remedy.empty());
      }
      CHECK(open_descriptors() == before);
    };
    TempDir dir;
    {
      std::ofstream file(dir.file("file"));
      file << "x";
    }
    refused(dir.file("file"), "not a directory");
    {
      std::filesystem::create_directory(dir.file("old"));
      std::ofstream table(dir.file("old/soft0"));
      table << "what is this?";
    }
    refused(dir.file("old"), "another release");
    if (geteuid() == 0) {
      std::filesystem::create_directory(dir.file("theirs"));
      REQUIRE(chown(dir.file("theirs").c_str(), 65534, 65534) == 0);
      refused(dir.file("theirs"), "belongs to user 65534");
    } else {
      MESSAGE("skipped: a directory of another user (needs root)");
    }
  }
}
