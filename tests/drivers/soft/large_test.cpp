// Messages as large as they may be. The memory is a small file, mapped over and over: every page of the
// gigabyte is one of the few that there are.
#include <sys/mman.h>
#include <unistd.h>

#include "rig.hpp"

using namespace rig;

namespace {

class Window {
 public:
  static constexpr std::size_t piece_bytes = 2 << 20;
  explicit Window(std::size_t bytes) : bytes_(bytes) {
    const int fd = memfd_create("pollen-window", MFD_CLOEXEC);
    REQUIRE(ftruncate(fd, piece_bytes) == 0);
    void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(at != MAP_FAILED);
    base_ = static_cast<std::byte*>(at);
    for (std::size_t offset = 0; offset < bytes; offset += piece_bytes)
      REQUIRE(mmap(base_ + offset, piece_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) !=
              MAP_FAILED);
    close(fd);
  }
  ~Window() { munmap(base_, bytes_); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  std::span<std::byte> span() const { return {base_, bytes_}; }

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_;
};

constexpr std::uint32_t gib = 1U << 30;

}  // namespace

TEST_SUITE("soft.large") {
  TEST_CASE("a message of 1 GiB goes, one byte more is a length error") {
    Pair pair;
    const Window window(std::size_t{gib} + Window::piece_bytes);
    auto from = pair.a.pd->register_memory(window.span(), driver::all_access);
    auto to = pair.b.pd->register_memory(window.span(), driver::all_access);
    window.span()[gib - 1] = std::byte{0x77};
    const queue::Remote there{reinterpret_cast<std::uint64_t>(window.span().data()), to->rkey()};
    pair.a.qp().send_burst().write(Sge{window.span().data(), gib, from->lkey()}, there);
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 1; }, std::chrono::seconds(60)));
    CHECK(pair.a.sent[0].ok());
    pair.a.qp().send_burst().write(Sge{window.span().data(), gib + 1, from->lkey()}, there);
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 2; }));
    CHECK(pair.a.sent[1].status == Status::local_length_error);
  }

  TEST_CASE("READs whose responses go half-way round the circle of PSNs wait for each other") {
    QpOptions options;
    options.rtr.mtu_bytes = 256;  // 2^22 packets each, and 2^24 numbers in all
    Pair pair(options);
    const Window window(gib);
    auto from = pair.b.pd->register_memory(window.span(), driver::all_access);
    const Window target(gib);
    auto to = pair.a.pd->register_memory(target.span(), driver::all_access);
    window.span()[17] = std::byte{0x55};
    {
      auto burst = pair.a.qp().send_burst();
      for (std::uint64_t i = 0; i < 4; ++i)
        REQUIRE(burst.read(Sge{target.span().data(), gib, to->lkey()},
                           {reinterpret_cast<std::uint64_t>(window.span().data()), from->rkey()},
                           {.wr_id = i}));
    }
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 4; }, std::chrono::seconds(60)));
    for (const auto& done : pair.a.sent) {
      CHECK(done.status == Status::success);
      CHECK(done.byte_len == gib);
    }
    CHECK(target.span()[17] == std::byte{0x55});
  }
}
