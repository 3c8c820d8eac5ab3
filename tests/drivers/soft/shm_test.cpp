// Two processes and the shared memory between them: payloads by reference and by copy, a peer that is
// killed or stopped, and what is left in the directory.
#include <sys/mman.h>

#include <fstream>
#include <sstream>

#include "pollen/base/error.hpp"
#include "process_rig.hpp"
#include "raw_rig.hpp"

using namespace rig;

namespace {

constexpr std::size_t half = 2 << 20;  // of an End's memory: for what comes in

QpOptions patient() {
  QpOptions options;
  options.rts.timeout = 0;
  options.config.send_wrs = 32;
  return options;
}

// How many memory files of other processes this one has mapped.
int foreign_mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:pollen-") != std::string::npos && line.find("r--s") != std::string::npos;
  return count;
}

// Memory of either kind, registered.
struct Memory {
  Memory(End& end, bool in_arena) : plain(in_arena ? 0 : 2 * half) {
    if (in_arena) arena.emplace(memory::ArenaOptions{.bytes = 2 * half, .largest = memory::PageKind::plain});
    bytes = in_arena ? arena->span() : std::span(plain);
    region =
        end.pd->register_memory(bytes, driver::all_access,
                                in_arena ? driver::SharedBacking{arena->fd(), 0} : driver::SharedBacking{});
  }
  Sge sge(std::size_t offset, std::uint32_t count) const {
    return {bytes.data() + offset, count, region->lkey()};
  }
  void fill(std::size_t offset, std::size_t count, unsigned seed) const {
    for (std::size_t i = 0; i < count; ++i)
      bytes[offset + i] = static_cast<std::byte>(i * 13 + i / 253 + seed);
  }
  bool holds(std::size_t offset, std::size_t count, unsigned seed) const {
    for (std::size_t i = 0; i < count; ++i)
      if (bytes[offset + i] != static_cast<std::byte>(i * 13 + i / 253 + seed)) return false;
    return true;
  }

  std::optional<memory::Arena> arena;
  std::vector<std::byte> plain;
  std::span<std::byte> bytes;
  std::unique_ptr<driver::Region> region;
};

constexpr std::uint32_t sizes[] = {1, 64, 65, 1024, 1025, 5000, 65'536, 65'537, 300'000, 1'000'000};

}  // namespace

TEST_SUITE("soft.shm") {
  TEST_CASE("two processes SEND, WRITE, READ and add through shared memory, by reference and by copy") {
    struct Case {
      const char* name;
      bool arena;
      bool copy;
    };
    for (const Case& one :
         {Case{"arenas", true, false}, Case{"plain memory", false, false}, Case{"copied", true, true}}) {
      CAPTURE(one.name);
      TempDir dir;
      soft::SoftOptions wire = shared_memory(dir);
      wire.copy_payloads = one.copy;
      const QpOptions options = patient();
      Child child([&](Talk talk) -> int {
        auto device = soft::make_driver(wire)->open("");
        End end(*device, options, 4096);
        Memory memory(end, one.arena);
        const PeerInfo peer = meet(end, talk, options);
        static_cast<void>(peer);
        talk.send(PeerInfo{end.gid, end.qp().qpn(), reinterpret_cast<std::uint64_t>(memory.bytes.data()),
                           memory.region->rkey()});
        for (const std::uint32_t bytes : sizes) {
          // Its message comes back as it came.
          CHILD_REQUIRE(end.qp().post_receive(memory.sge(0, bytes)));
          end.qp().publish_receives();
          talk.send(char{1});
          CHILD_REQUIRE(within(std::chrono::seconds(10), [&] {
            end.turn();
            return !end.received.empty();
          }));
          CHILD_REQUIRE(end.received[0].ok() && end.received[0].byte_len == bytes);
          CHILD_REQUIRE(memory.holds(0, bytes, bytes));
          end.received.clear();
          end.qp().send_burst().send(memory.sge(0, bytes));
          CHILD_REQUIRE(within(std::chrono::seconds(10), [&] {
            end.turn();
            return !end.sent.empty();
          }));
          CHILD_REQUIRE(end.sent[0].ok());
          end.sent.clear();
        }
        while (!talk.pending()) end.turn();  // its memory is written and read from there
        CHILD_REQUIRE(foreign_mappings() == (one.arena && !one.copy ? 1 : 0));
        std::uint64_t counter;
        std::memcpy(&counter, memory.bytes.data() + half, 8);
        CHILD_REQUIRE(counter == 100);
        return 0;
      });
      auto device = soft::make_driver(wire)->open("");
      End end(*device, options, 4096);
      Memory memory(end, one.arena);
      meet(end, child.talk(), options);
      const auto theirs = child.talk().receive<PeerInfo>();
      const auto finish = [&](std::size_t count) {
        return within(std::chrono::seconds(10), [&] {
          end.turn();
          return end.sent.size() >= count;
        });
      };
      for (const std::uint32_t bytes : sizes) {
        CAPTURE(bytes);
        memory.fill(0, bytes, bytes);
        REQUIRE(end.qp().post_receive(memory.sge(half, bytes)));
        end.qp().publish_receives();
        child.talk().receive<char>();
        end.qp().send_burst().send(memory.sge(0, bytes));
        REQUIRE(finish(1));
        REQUIRE(within(std::chrono::seconds(10), [&] {
          end.turn();
          return !end.received.empty();
        }));
        CHECK(memory.holds(half, bytes, bytes));
        end.received.clear();
        end.sent.clear();
      }
      for (const std::uint32_t bytes : sizes) {
        CAPTURE(bytes);
        memory.fill(0, bytes, bytes + 1);
        std::memset(memory.bytes.data() + half, 0, bytes);
        {
          auto burst = end.qp().send_burst();
          burst.write(memory.sge(0, bytes), {theirs.address, theirs.rkey});
          burst.read(memory.sge(half, bytes), {theirs.address, theirs.rkey});
        }
        REQUIRE(finish(2));
        CHECK(end.sent[0].ok());
        CHECK(end.sent[1].ok());
        CHECK(memory.holds(half, bytes, bytes + 1));
        end.sent.clear();
      }
      {
        auto burst = end.qp().send_burst();
        burst.write_inline(std::vector<std::byte>(8), {theirs.address + half, theirs.rkey});
      }
      REQUIRE(finish(1));
      end.sent.clear();
      for (std::uint64_t i = 0; i < 100; ++i) {
        end.qp().send_burst().fetch_add(memory.sge(0, 8), {theirs.address + half, theirs.rkey}, 1);
        REQUIRE(finish(1));
        std::uint64_t before;
        std::memcpy(&before, memory.bytes.data(), 8);
        REQUIRE(before == i);
        end.sent.clear();
      }
      CHECK(foreign_mappings() == (one.arena && !one.copy ? 1 : 0));
      child.talk().send(char{1});
      CHECK(child.wait(std::chrono::seconds(10), [&] { end.turn(); }) == 0);
    }
  }

  TEST_CASE("a file that is not what the sender says is refused, and the payload is copied instead") {
    TempDir dir;
    const soft::SoftOptions wire = shared_memory(dir);
    const QpOptions options = patient();
    Child child([&](Talk talk) -> int {
      auto device = soft::make_driver(wire)->open("");
      End end(*device, options);
      // A file that can shrink, a pipe, and a file that is too short: none may be mapped and read.
      const int unsealed = memfd_create("pollen-unsealed", MFD_CLOEXEC);
      CHILD_REQUIRE(ftruncate(unsealed, 1 << 20) == 0);
      int pipe_fds[2];
      CHILD_REQUIRE(pipe(pipe_fds) == 0);
      memory::Arena tiny({.bytes = 4096, .largest = memory::PageKind::plain});
      std::vector<std::unique_ptr<driver::Region>> regions;
      for (const int fd : {unsealed, pipe_fds[0], tiny.fd()})
        regions.push_back(end.pd->register_memory(end.memory, driver::all_access, {fd, 0}));
      meet(end, talk, options);
      for (std::uint64_t i = 0; i < regions.size(); ++i) {
        end.fill(0, 100'000, static_cast<unsigned>(i));
        end.qp().send_burst().send(Sge{end.memory.data(), 100'000, regions[i]->lkey()});
        CHILD_REQUIRE(within(std::chrono::seconds(10), [&] {
          end.turn();
          return end.sent.size() == i + 1;
        }));
        CHILD_REQUIRE(end.sent[i].ok());
      }
      return 0;
    });
    auto device = soft::make_driver(wire)->open("");
    End end(*device, options);
    for (std::uint64_t i = 0; i < 3; ++i) end.qp().post_receive(end.sge(i * 200'000, 100'000), i);
    end.qp().publish_receives();
    meet(end, child.talk(), options);
    CHECK(child.wait(std::chrono::seconds(20), [&] { end.turn(); }) == 0);
    REQUIRE(end.received.size() == 3);
    for (std::uint64_t i = 0; i < 3; ++i) {
      CHECK(end.received[i].ok());
      CHECK(end.holds(i * 200'000, 100'000, static_cast<unsigned>(i)));
    }
  }

  TEST_CASE("a peer that is killed ends its requests in time, and its files go") {
    for (const bool reads : {false, true}) {
      CAPTURE(reads);
      TempDir dir;
      const soft::SoftOptions wire = shared_memory(dir);
      QpOptions options;
      options.rts.timeout = 16;  // eight times 268 ms: more than a busy machine keeps a process waiting
      Child child([&](Talk talk) -> int {
        auto device = soft::make_driver(wire)->open("");
        End end(*device, options);
        meet(end, talk, options);
        for (;;) end.turn();
      });
      auto device = soft::make_driver(wire)->open("");
      End end(*device, options);
      const PeerInfo peer = meet(end, child.talk(), options);
      CHECK(dir.files().size() == 3);
      std::uint64_t good = 0;
      bool failed = false;
      bool killed = false;
      REQUIRE(within(std::chrono::seconds(20), [&] {
        if (!killed) {
          auto burst = end.qp().send_burst();
          while (reads ? burst.read(end.sge(0, 50'000), {peer.address, peer.rkey})
                       : burst.write(end.sge(0, 50'000), {peer.address, peer.rkey})) {
          }
        }
        end.turn();
        for (const auto& done : end.sent) {
          if (done.ok()) {
            ++good;
          } else if (!failed) {
            failed = true;
            CHECK(done.status == Status::retry_exceeded);
          }
        }
        end.sent.clear();
        if (good > 200 && !killed) {
          child.kill(SIGKILL);
          killed = true;
        }
        return failed;
      }));
      CHECK(good > 200);
      child.wait();
      CHECK(within(std::chrono::seconds(5), [&] {
        end.turn();
        return dir.files().size() == 2;
      }));
      CHECK(dir.holds("soft0"));
      CHECK(dir.holds("soft0." + std::to_string(end.qp().qpn() >> 14)));
    }
  }

  TEST_CASE("a peer that is stopped for a while loses nothing") {
    for (const bool arena : {true, false}) {
      CAPTURE(arena);
      TempDir dir;
      const soft::SoftOptions wire = shared_memory(dir);
      QpOptions options = patient();
      options.rts.timeout = 17;  // half a second
      constexpr std::uint64_t total = 2000;
      Child child([&](Talk talk) -> int {
        auto device = soft::make_driver(wire)->open("");
        End end(*device, options);
        std::uint64_t buffers = 0;
        for (; buffers < 64; ++buffers) end.qp().post_receive(end.sge(buffers % 64 * 8192, 8192), buffers);
        end.qp().publish_receives();
        meet(end, talk, options);
        std::uint64_t seen = 0;
        CHILD_REQUIRE(within(std::chrono::seconds(20), [&] {
          end.turn();
          for (const auto& done : end.received) {
            if (!done.ok() || done.wr_id != seen ||
                !end.holds(seen % 64 * 8192, 5000, static_cast<unsigned>(seen)))
              return true;
            ++seen;
            end.qp().post_receive(end.sge(buffers % 64 * 8192, 8192), buffers);
            ++buffers;
          }
          end.received.clear();
          end.qp().publish_receives();
          return seen == total;
        }));
        CHILD_REQUIRE(seen == total);
        for (int i = 0; i < 100; ++i) end.turn();  // the last acknowledgements
        talk.receive<char>();
        return 0;
      });
      auto device = soft::make_driver(wire)->open("");
      End end(*device, options, 4096);
      std::optional<memory::Arena> pages;
      std::vector<std::byte> plain;
      if (arena)
        pages.emplace(memory::ArenaOptions{.bytes = 1 << 20, .largest = memory::PageKind::plain});
      else
        plain.resize(1 << 20);
      const std::span<std::byte> bytes = arena ? pages->span() : std::span(plain);
      auto region = end.pd->register_memory(bytes, driver::all_access, {arena ? pages->fd() : -1, 0});
      meet(end, child.talk(), options);
      std::uint64_t posted = 0;
      std::uint64_t completed = 0;
      auto resume = std::chrono::steady_clock::time_point::max();
      bool stopped = false;
      REQUIRE(within(std::chrono::seconds(20), [&] {
        while (posted < total && posted < completed + 16) {
          const std::size_t at = posted % 16 * 8192;
          for (std::size_t i = 0; i < 5000; ++i)
            bytes[at + i] = static_cast<std::byte>(i * 7 + i / 251 + static_cast<unsigned>(posted));
          end.qp().send_burst().send(Sge{bytes.data() + at, 5000, region->lkey()}, {.wr_id = posted});
          ++posted;
        }
        if (completed > total / 2 && !stopped) {
          stopped = true;
          child.kill(SIGSTOP);
          resume = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
        }
        if (std::chrono::steady_clock::now() > resume) {
          child.kill(SIGCONT);
          resume = std::chrono::steady_clock::time_point::max();
        }
        end.turn();
        for (const auto& done : end.sent) {
          REQUIRE(done.ok());
          REQUIRE(done.wr_id == completed);
          ++completed;
        }
        end.sent.clear();
        return completed == total;
      }));
      child.talk().send(char{1});
      CHECK(child.wait() == 0);
    }
  }

  TEST_CASE("an engine that sleeps is woken by another process's packet, also when that one is late") {
    for (const char* faults : {"seed=1", "delay=1:20ms"}) {
      CAPTURE(std::string(faults));
      TempDir dir;
      soft::SoftOptions wire = shared_memory(dir);
      const QpOptions options = patient();
      Child child([&](Talk talk) -> int {
        soft::SoftOptions late = wire;
        late.faults = soft::parse_faults(faults);
        auto device = soft::make_driver(late)->open("");
        End end(*device, options);
        meet(end, talk, options);
        talk.receive<char>();
        end.qp().send_burst().send(end.sge(0, 8));
        while (!talk.pending()) end.turn();
        return 0;
      });
      auto device = soft::make_driver(wire)->open("");
      End end(*device, options);
      end.qp().post_receive(end.sge(0, 64));
      end.qp().publish_receives();
      meet(end, child.talk(), options);
      for (int i = 0; i < 100; ++i) end.turn();
      REQUIRE(end.port->arm());
      child.talk().send(char{1});
      pollfd wait{end.port->wake_fd(), POLLIN, 0};
      // The first wake may come before the packet.
      bool arrived = false;
      for (int i = 0; i < 5 && !arrived; ++i) {
        if (poll(&wait, 1, 1000) != 1) break;
        end.port->disarm();
        for (int turn = 0; turn < 20; ++turn) end.turn();
        arrived = !end.received.empty();
        if (!arrived) end.port->arm();
      }
      CHECK(arrived);
      child.talk().send(char{1});
      CHECK(child.wait() == 0);
    }
  }
}
