#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <set>

#include "memory_device.hpp"

using namespace memory_device;

namespace {

constexpr std::uint32_t half_bytes = 256;

SendMemory::Shape on_uar(std::uint32_t half = half_bytes) {
  return {.blocks = 16, .qpn = 0x77, .max_inline_bytes = 300, .hook = false, .half_bytes = half};
}

bool is_untouched(const std::byte* at, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i)
    if (at[i] != untouched) return false;
  return true;
}

void wipe(SendMemory& memory) {
  std::memset(memory.uar().registers, static_cast<int>(untouched), 2 * half_bytes);
}

// A page that faults on the first store: what the doorbell record and the ring hold at that moment is what
// the device would find.
class TrapPage {
 public:
  explicit TrapPage(const std::uint32_t* record, const std::byte* ring) {
    page_ = static_cast<std::byte*>(::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(page_ != MAP_FAILED);
    current = this;
    record_ = record;
    ring_ = ring;
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, &before_);
  }
  ~TrapPage() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::munmap(page_, 4096);
    current = nullptr;
  }
  std::byte* registers() const { return page_; }
  int faults() const { return faults_; }
  std::uint32_t record_then() const { return big_endian(record_then_); }
  std::uint64_t ring_then() const { return ring_then_; }

 private:
  static void on_fault(int number, siginfo_t* info, void*) {
    auto* at = static_cast<std::byte*>(info->si_addr);
    if (current == nullptr || at < current->page_ || at >= current->page_ + 4096) {
      ::signal(number, SIG_DFL);
      return;
    }
    current->faults_ = current->faults_ + 1;
    current->record_then_ = __atomic_load_n(current->record_, __ATOMIC_RELAXED);
    std::memcpy(&current->ring_then_, current->ring_, sizeof current->ring_then_);
    ::mprotect(current->page_, 4096, PROT_READ | PROT_WRITE);
  }

  static inline TrapPage* current = nullptr;
  std::byte* page_;
  const std::uint32_t* record_;
  const std::byte* ring_;
  volatile int faults_ = 0;
  volatile std::uint32_t record_then_ = 0;
  std::uint64_t ring_then_ = 0;
  struct sigaction before_ {};
};

}  // namespace

TEST_SUITE("queue.doorbell") {
  TEST_CASE("a single short WQE is copied whole to the register, and no further") {
    for (std::size_t size : {1U, 44U, 45U, 100U, 236U}) {
      Rig rig(on_uar());
      const auto data = pattern(size);
      CHECK(rig.sq.burst().send_inline(data));
      const std::uint32_t bytes =
          blocks_of_segments(1 + inline_segments(static_cast<std::uint32_t>(size))) * 64;
      CAPTURE(size);
      REQUIRE(bytes <= half_bytes);
      CHECK(std::memcmp(rig.send_memory.uar_bytes(0), rig.send_memory.block(0), bytes) == 0);
      CHECK(is_untouched(rig.send_memory.uar_bytes(bytes), 2 * half_bytes - bytes));
      CHECK(rig.send_memory.record() == bytes / 64);
      CHECK(rig.sq.doorbells() == 1);
    }
  }

  TEST_CASE("a single WQE longer than the half gets the 8-byte doorbell") {
    Rig rig(on_uar());
    const auto data = pattern(237);
    CHECK(rig.sq.burst().send_inline(data));
    CHECK(std::memcmp(rig.send_memory.uar_bytes(0), rig.send_memory.block(0), 8) == 0);
    CHECK(is_untouched(rig.send_memory.uar_bytes(8), 2 * half_bytes - 8));
  }

  TEST_CASE("a single WQE around the end of the ring gets the 8-byte doorbell") {
    Rig rig(on_uar());
    for (int i = 0; i < 15; ++i) {
      CHECK(rig.sq.burst().nop());
      rig.send_memory.believe_record();
      rig.complete_all();
      rig.poll_all();
    }
    wipe(rig.send_memory);
    const auto data = pattern(64);
    CHECK(rig.sq.burst().send_inline(data));
    const std::uint32_t half = half_bytes;  // fifteen doorbells before this one
    CHECK(std::memcmp(rig.send_memory.uar_bytes(half), rig.send_memory.block(15), 8) == 0);
    CHECK(is_untouched(rig.send_memory.uar_bytes(half + 8), half_bytes - 8));
    CHECK(is_untouched(rig.send_memory.uar_bytes(0), half_bytes));
  }

  TEST_CASE("a burst gets one doorbell: the first 8 bytes of its last WQE") {
    for (std::uint32_t count : {2U, 3U, 8U}) {
      Rig rig(on_uar());
      {
        SendBurst burst = rig.sq.burst();
        for (std::uint32_t i = 0; i < count; ++i) CHECK(burst.nop());
      }
      CHECK(std::memcmp(rig.send_memory.uar_bytes(0), rig.send_memory.block(count - 1), 8) == 0);
      CHECK(is_untouched(rig.send_memory.uar_bytes(8), 2 * half_bytes - 8));
      CHECK(rig.sq.doorbells() == 1);
      CHECK(rig.send_memory.record() == count);
    }
  }

  TEST_CASE("the halves take turns, whatever the kind of doorbell") {
    Rig rig(on_uar());
    for (std::uint32_t i = 0; i < 12; ++i) {
      wipe(rig.send_memory);
      {
        SendBurst burst = rig.sq.burst();
        CHECK(burst.nop());
        if (i % 3 == 1) CHECK(burst.nop());
      }
      const std::uint32_t used = i % 2 * half_bytes;
      CHECK_FALSE(is_untouched(rig.send_memory.uar_bytes(used), 8));
      CHECK(is_untouched(rig.send_memory.uar_bytes(half_bytes - used), half_bytes));
      CHECK(rig.send_memory.uar().offset == half_bytes - used);
      rig.send_memory.believe_record();
      rig.complete_all();
      rig.poll_all();
    }
  }

  TEST_CASE("two queues on one UAR share its turn") {
    const SendMemory::Shape shape = on_uar();
    SendMemory first(shape);
    SendMemory second(shape);
    CqMemory cq_memory(64);
    CompletionQueue cq(cq_memory.ring());
    SendRing ring = second.ring();
    ring.uar = &first.uar();
    ring.qpn = 0x78;
    SendQueue a(first.ring(), cq, 1);
    SendQueue b(ring, cq, 1);
    CHECK(a.burst().nop());
    CHECK(first.uar().offset == half_bytes);
    CHECK(b.burst().nop());
    CHECK(std::memcmp(first.uar_bytes(half_bytes), second.block(0), 64) == 0);
    CHECK(first.uar().offset == 0);
  }

  TEST_CASE("without BlueFlame a single WQE gets the 8-byte doorbell at the same register") {
    Rig rig(on_uar(0));
    for (std::uint32_t i = 0; i < 3; ++i) {
      wipe(rig.send_memory);
      CHECK(rig.sq.burst().nop());
      CHECK(std::memcmp(rig.send_memory.uar_bytes(0), rig.send_memory.block(i), 8) == 0);
      CHECK(is_untouched(rig.send_memory.uar_bytes(8), 2 * half_bytes - 8));
    }
  }

  TEST_CASE("when the register is written, the WQE and the doorbell record are in memory") {
    for (const bool burst_of_two : {false, true}) {
      SendMemory memory(on_uar());
      SendRing ring = memory.ring();
      TrapPage page(ring.record, ring.wqes);
      Uar uar{.registers = page.registers(), .half_bytes = half_bytes};
      ring.uar = &uar;
      CqMemory cq_memory(64);
      CompletionQueue cq(cq_memory.ring());
      SendQueue sq(ring, cq, 16);
      {
        SendBurst burst = sq.burst();
        CHECK(burst.nop());
        if (burst_of_two) CHECK(burst.nop());
        CHECK(memory.record() == 0);
        CHECK(page.faults() == 0);
      }
      CHECK(page.faults() == 1);
      CHECK(page.record_then() == (burst_of_two ? 2 : 1));
      CHECK(page.ring_then() == load_u64(memory.block(0)));
      CHECK(page.ring_then() != load_u64(std::array<std::byte, 8>{untouched, untouched, untouched, untouched,
                                                                  untouched, untouched, untouched, untouched}
                                             .data()));
    }
  }

  TEST_CASE("a hook is called once per burst, with the last WQE, after the doorbell record") {
    struct Seen {
      const std::uint32_t* record;
      int calls = 0;
      std::uint32_t record_then = 0;
      const CtrlSegment* last = nullptr;
      static void call(void* context, const CtrlSegment* last) noexcept {
        auto& self = *static_cast<Seen*>(context);
        ++self.calls;
        self.record_then = big_endian(__atomic_load_n(self.record, __ATOMIC_RELAXED));
        self.last = last;
      }
    };
    SendMemory memory({.blocks = 16});
    SendRing ring = memory.ring();
    Seen seen{.record = ring.record};
    ring.hook = {.function = Seen::call, .context = &seen};
    CqMemory cq_memory(64);
    CompletionQueue cq(cq_memory.ring());
    SendQueue sq(ring, cq, 16);
    {
      SendBurst burst = sq.burst();
      for (int i = 0; i < 5; ++i) CHECK(burst.nop());
      CHECK(seen.calls == 0);
    }
    CHECK(seen.calls == 1);
    CHECK(seen.record_then == 5);
    CHECK(static_cast<const void*>(seen.last) == memory.block(4));
    CHECK(sq.doorbells() == 1);
  }

  TEST_CASE("an empty burst rings for nothing") {
    Rig rig(on_uar());
    {
      SendBurst burst = rig.sq.burst();
      CHECK(burst.ring() == 0);
      CHECK(burst.defer() == 0);
    }
    rig.sq.ring_doorbell();
    CHECK(rig.sq.doorbells() == 0);
    CHECK(rig.send_memory.record() == 0);
    CHECK(is_untouched(rig.send_memory.uar_bytes(0), 2 * half_bytes));
  }

  TEST_CASE("deferred bursts wait for one doorbell that covers them all") {
    Rig rig(on_uar());
    for (int i = 0; i < 3; ++i) {
      SendBurst burst = rig.sq.burst();
      CHECK(burst.nop());
      CHECK(burst.defer() == 1);
      CHECK(burst.size() == 0);
    }
    CHECK(rig.send_memory.record() == 0);
    CHECK(rig.sq.outstanding() == 3);
    rig.sq.ring_doorbell();
    rig.sq.ring_doorbell();
    CHECK(rig.sq.doorbells() == 1);
    CHECK(rig.send_memory.record() == 3);
    // More than one WQE: not BlueFlame, although each burst had one.
    CHECK(std::memcmp(rig.send_memory.uar_bytes(0), rig.send_memory.block(2), 8) == 0);
    CHECK(is_untouched(rig.send_memory.uar_bytes(8), 2 * half_bytes - 8));
  }

  TEST_CASE("a single deferred WQE still goes by BlueFlame") {
    Rig rig(on_uar());
    {
      SendBurst burst = rig.sq.burst();
      CHECK(burst.nop());
      burst.defer();
    }
    rig.sq.ring_doorbell();
    CHECK(std::memcmp(rig.send_memory.uar_bytes(0), rig.send_memory.block(0), 64) == 0);
  }

  TEST_CASE("a burst behind a deferred one rings for both") {
    Rig rig;
    {
      SendBurst burst = rig.sq.burst();
      CHECK(burst.nop({.wr_id = 1}));
      burst.defer();
    }
    {
      SendBurst burst = rig.sq.burst();
      CHECK(burst.nop({.wr_id = 2}));
      CHECK(burst.ring() == 1);
    }
    CHECK(rig.send_memory.doorbells() == 1);
    CHECK(rig.complete_all().size() == 2);
  }

  TEST_CASE("a burst can go on after its doorbell") {
    Rig rig;
    SendBurst burst = rig.sq.burst();
    CHECK(burst.nop({.wr_id = 1}));
    CHECK(burst.ring() == 1);
    CHECK(burst.nop({.wr_id = 2}));
    CHECK(burst.nop({.wr_id = 3}));
    CHECK(burst.ring() == 2);
    CHECK(rig.send_memory.doorbells() == 2);
    CHECK(rig.complete_all().size() == 3);
    CHECK(rig.sq.posted_total() == 3);
  }

  TEST_CASE("the doorbell record holds 16 bits of the producer index") {
    Rig rig({.blocks = 64}, 16, 128);
    for (std::uint32_t posted = 0; posted < 70000;) {
      {
        SendBurst burst = rig.sq.burst();
        for (int i = 0; i < 20; ++i) CHECK(burst.nop({.wr_id = posted + 1U * static_cast<unsigned>(i)}));
      }
      posted += 20;
      // The queue's own NOPs count as blocks too.
      const auto wqes = rig.complete_all();
      REQUIRE(rig.send_memory.record() == ((wqes.back().index + 1) & 0xffff));
      for (const Completion& completion : rig.poll_all()) REQUIRE(completion.ok());
      rig.complete_all();
      rig.poll_all();
      REQUIRE(rig.sq.outstanding() == 0);
    }
    CHECK(rig.sq.posted_total() == 70000);
  }
}
