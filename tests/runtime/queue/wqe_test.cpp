#include <array>
#include <functional>

#include "expected_wqe.hpp"
#include "memory_device.hpp"

using namespace memory_device;

namespace {

constexpr std::uint32_t qpn = 0x00abcdef;
constexpr std::uint32_t ring_blocks = 16;
constexpr std::uint32_t max_inline_bytes = 444;
constexpr std::uint32_t max_sge = 12;
constexpr std::uint32_t imm = 0x01020304;
constexpr Remote remote{.address = 0x1122334455667788, .rkey = 0x99aabbcc};
constexpr std::uint8_t ce = MLX5_WQE_CTRL_CQ_UPDATE;

const std::uint32_t imm_be = htobe32(imm);

std::byte buffer[4096];
const Sge local{.address = buffer + 3, .bytes = 0x00012345, .lkey = 0xdeadbeef};

Address address() {
  Address to;
  std::uint8_t mac[6] = {2, 3, 5, 7, 11, 13};
  std::uint8_t gid[16] = {0xfe, 0x80, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  std::memset(static_cast<void*>(&to), 0, sizeof to);
  mlx5dv_set_dgram_seg(&to.segment, 0x0badcafe00000000, 0x654321, 1, 0x10, 0x80, 0x1717, mac, 0x22, 0x40,
                       0x40000001, gid);
  return to;
}
const Address to = address();

SendMemory::Shape shape() {
  return {.blocks = ring_blocks, .qpn = qpn, .max_inline_bytes = max_inline_bytes, .max_sge = max_sge};
}

struct Request {
  const char* name;
  std::function<bool(SendBurst&, const WrOptions&)> post;
  std::function<ExpectedWqe(std::uint8_t flags)> expected;
};

// Posts one request on an idle queue at ring position `position`, and says what is wrong with its WQE and
// with the memory around it.
std::string wrong_at(std::uint32_t position, const Request& request, const WrOptions& options = {},
                     std::uint8_t flags = 0) {
  Rig rig(shape());
  rig.advance(position);
  rig.send_memory.refill();
  {
    SendBurst burst = rig.sq.burst();
    if (!request.post(burst, options)) return "not posted";
    if (burst.size() != 1) return "not one request";
  }
  const auto wqes = rig.complete_all();
  if (wqes.size() != 1) return "not one WQE";
  // On an idle queue the last WQE of a burst is signalled.
  const std::string difference = request.expected(flags | ce).difference(wqes[0].bytes, position);
  if (!difference.empty()) return difference;
  for (std::uint32_t i = wqes[0].blocks; i < ring_blocks; ++i)
    for (std::uint32_t at = 0; at < block_bytes; ++at)
      if (rig.send_memory.block(position + i)[at] != untouched) return "wrote behind the WQE";
  if (rig.sq.free_blocks() != ring_blocks - wqes[0].blocks) return "blocks miscounted";
  const auto completions = rig.poll_all();
  if (completions.size() != 1 || completions[0].wr_id != options.wr_id || completions[0].wr_count != 1)
    return "completion wrong";
  if (rig.sq.free_blocks() != ring_blocks) return "blocks not given back";
  return {};
}

std::vector<Request> requests() {
  using enum Opcode;
  const auto code = [](Opcode op) { return static_cast<std::uint8_t>(op); };
  return {
      {"SEND", [](SendBurst& b, const WrOptions& o) { return b.send(local, o); },
       [=](std::uint8_t f) {
         return ExpectedWqe(code(send), qpn, f).data(local.bytes, local.lkey, local.address);
       }},
      {"SEND_WITH_IMM", [](SendBurst& b, const WrOptions& o) { return b.send_with_imm(local, imm, o); },
       [=](std::uint8_t f) {
         return ExpectedWqe(code(send_with_imm), qpn, f, imm_be).data(local.bytes, local.lkey, local.address);
       }},
      {"SEND_WITH_INV", [](SendBurst& b, const WrOptions& o) { return b.send_with_inv(local, imm, o); },
       [=](std::uint8_t f) {
         return ExpectedWqe(code(send_with_inv), qpn, f, imm_be).data(local.bytes, local.lkey, local.address);
       }},
      {"WRITE", [](SendBurst& b, const WrOptions& o) { return b.write(local, remote, o); },
       [=](std::uint8_t f) {
         return ExpectedWqe(code(write), qpn, f)
             .remote(remote.address, remote.rkey)
             .data(local.bytes, local.lkey, local.address);
       }},
      {"WRITE_WITH_IMM",
       [](SendBurst& b, const WrOptions& o) { return b.write_with_imm(local, remote, imm, o); },
       [=](std::uint8_t f) {
         return ExpectedWqe(code(write_with_imm), qpn, f, imm_be)
             .remote(remote.address, remote.rkey)
             .data(local.bytes, local.lkey, local.address);
       }},
      {"READ", [](SendBurst& b, const WrOptions& o) { return b.read(local, remote, o); },
       [=](std::uint8_t f) {
         return ExpectedWqe(code(read), qpn, f)
             .remote(remote.address, remote.rkey)
             .data(local.bytes, local.lkey, local.address);
       }},
      {"FETCH_ADD",
       [](SendBurst& b, const WrOptions& o) {
         return b.fetch_add({buffer, 8, local.lkey}, remote, 0x0102030405060708, o);
       },
       [=](std::uint8_t f) {
         return ExpectedWqe(code(fetch_add), qpn, f)
             .remote(remote.address, remote.rkey)
             .atomic(0x0102030405060708, 0)
             .data(8, local.lkey, buffer);
       }},
      {"CMP_SWAP",
       [](SendBurst& b, const WrOptions& o) {
         return b.cmp_swap({buffer, 8, local.lkey}, remote, 0x1111, 0x2222, o);
       },
       [=](std::uint8_t f) {
         return ExpectedWqe(code(cmp_swap), qpn, f)
             .remote(remote.address, remote.rkey)
             .atomic(0x2222, 0x1111)
             .data(8, local.lkey, buffer);
       }},
      {"NOP", [](SendBurst& b, const WrOptions& o) { return b.nop(o); },
       [=](std::uint8_t f) { return ExpectedWqe(code(nop), qpn, f); }},
      {"UD SEND", [](SendBurst& b, const WrOptions& o) { return b.send_to(to, local, o); },
       [=](std::uint8_t f) {
         return ExpectedWqe(code(send), qpn, f)
             .datagram(to.segment)
             .data(local.bytes, local.lkey, local.address);
       }},
      {"UD SEND_WITH_IMM",
       [](SendBurst& b, const WrOptions& o) { return b.send_to_with_imm(to, local, imm, o); },
       [=](std::uint8_t f) {
         return ExpectedWqe(code(send_with_imm), qpn, f, imm_be)
             .datagram(to.segment)
             .data(local.bytes, local.lkey, local.address);
       }},
  };
}

}  // namespace

TEST_SUITE("queue.wqe") {
  TEST_CASE("a WRITE is these 48 bytes") {
    SendMemory::Shape small{.blocks = 4, .qpn = 0x17};
    Rig rig(small);
    rig.advance(2);
    REQUIRE(rig.sq.burst().write({reinterpret_cast<const void*>(0x7fff00001000), 64, 0x1000},
                                 {0x2000, 0x3000}, {.wr_id = 9, .fence = true}));
    const std::array<unsigned char, 48> golden{
        0x00, 0x00, 0x02, 0x08, 0x00, 0x00, 0x17, 0x03, 0x00, 0x00, 0x00, 0x88, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x30, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x40, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x7f, 0xff, 0x00, 0x00, 0x10, 0x00};
    CHECK(std::memcmp(rig.send_memory.block(2), golden.data(), golden.size()) == 0);
  }

  TEST_CASE("every opcode has mlx5's bytes at every ring position") {
    for (const Request& request : requests())
      for (std::uint32_t position = 0; position < ring_blocks; ++position) {
        CAPTURE(request.name);
        CAPTURE(position);
        CHECK(wrong_at(position, request, {.wr_id = 0x8000000000000000 + position}) == "");
      }
  }

  TEST_CASE("fence, solicited and signal set their bits and nothing else") {
    for (const Request& request : requests())
      for (unsigned bits = 0; bits < 8; ++bits) {
        const bool fence = (bits & 1) != 0;
        const bool solicited = (bits & 2) != 0;
        CAPTURE(request.name);
        CAPTURE(bits);
        CHECK(wrong_at(5, request,
                       {.wr_id = 3, .signal = (bits & 4) != 0, .solicited = solicited, .fence = fence},
                       static_cast<std::uint8_t>((fence ? MLX5_WQE_CTRL_FENCE : 0) |
                                                 (solicited ? MLX5_WQE_CTRL_SOLICITED : 0))) == "");
      }
  }

  TEST_CASE("only WQEs that ask for a completion, or that the queue picks, have the signal bit") {
    Rig rig(shape(), 4);
    {
      SendBurst burst = rig.sq.burst();
      for (std::uint64_t i = 0; i < 3; ++i) CHECK(burst.nop({.wr_id = i, .signal = i == 1}));
    }
    const auto wqes = rig.complete_all();
    REQUIRE(wqes.size() == 3);
    CHECK_FALSE(wqes[0].signalled());
    CHECK(wqes[1].signalled());
    const auto completions = rig.poll_all();
    REQUIRE(completions.size() >= 1);
    CHECK(completions[0].wr_id == 1);
    CHECK(completions[0].wr_count == 2);
  }

  TEST_CASE("inline data of every size lies where mlx5 has it, at every ring position and around its end") {
    const auto data = pattern(max_inline_bytes);
    const auto one = [&](std::uint32_t size, std::uint32_t position) {
      const std::span<const std::byte> bytes(data.data(), size);
      const auto expect = [&](ExpectedWqe wqe) {
        // Nothing to send: no segment at all.
        return size == 0 ? wqe : wqe.inline_data(bytes);
      };
      const Request shapes[] = {
          {"SEND", [&](SendBurst& b, const WrOptions& o) { return b.send_inline(bytes, o); },
           [&](std::uint8_t f) { return expect(ExpectedWqe(MLX5_OPCODE_SEND, qpn, f)); }},
          {"SEND_WITH_IMM",
           [&](SendBurst& b, const WrOptions& o) { return b.send_inline_with_imm(bytes, imm, o); },
           [&](std::uint8_t f) { return expect(ExpectedWqe(MLX5_OPCODE_SEND_IMM, qpn, f, imm_be)); }},
          {"WRITE", [&](SendBurst& b, const WrOptions& o) { return b.write_inline(bytes, remote, o); },
           [&](std::uint8_t f) {
             return expect(ExpectedWqe(MLX5_OPCODE_RDMA_WRITE, qpn, f).remote(remote.address, remote.rkey));
           }},
          {"WRITE_WITH_IMM",
           [&](SendBurst& b, const WrOptions& o) { return b.write_inline_with_imm(bytes, remote, imm, o); },
           [&](std::uint8_t f) {
             return expect(
                 ExpectedWqe(MLX5_OPCODE_RDMA_WRITE_IMM, qpn, f, imm_be).remote(remote.address, remote.rkey));
           }},
          {"UD SEND", [&](SendBurst& b, const WrOptions& o) { return b.send_inline_to(to, bytes, o); },
           [&](std::uint8_t f) {
             return expect(ExpectedWqe(MLX5_OPCODE_SEND, qpn, f).datagram(to.segment));
           }},
          {"UD SEND_WITH_IMM",
           [&](SendBurst& b, const WrOptions& o) { return b.send_inline_to_with_imm(to, bytes, imm, o); },
           [&](std::uint8_t f) {
             return expect(ExpectedWqe(MLX5_OPCODE_SEND_IMM, qpn, f, imm_be).datagram(to.segment));
           }},
      };
      for (const Request& request : shapes) {
        const std::string wrong = wrong_at(position, request, {.wr_id = size});
        if (!wrong.empty()) return std::string(request.name) + ": " + wrong;
      }
      return std::string();
    };
    for (std::uint32_t size = 0; size <= max_inline_bytes; ++size)
      for (std::uint32_t position = 0; position < ring_blocks; ++position) {
        const std::string wrong = one(size, position);
        if (wrong.empty()) continue;
        CAPTURE(size);
        CAPTURE(position);
        CHECK(wrong == "");
      }
    CHECK(one(max_inline_bytes, 15) == "");
  }

  TEST_CASE("a size that the compiler knows makes the same bytes, at every ring position") {
    const auto data = pattern(100);
    const auto check = [&]<std::size_t size>(std::span<const std::byte, size> bytes) {
      const Request shapes[] = {
          {"SEND", [&](SendBurst& b, const WrOptions& o) { return b.send_inline(bytes, o); },
           [&](std::uint8_t f) { return ExpectedWqe(MLX5_OPCODE_SEND, qpn, f).inline_data(bytes); }},
          {"WRITE", [&](SendBurst& b, const WrOptions& o) { return b.write_inline(bytes, remote, o); },
           [&](std::uint8_t f) {
             return ExpectedWqe(MLX5_OPCODE_RDMA_WRITE, qpn, f)
                 .remote(remote.address, remote.rkey)
                 .inline_data(bytes);
           }},
      };
      for (const Request& request : shapes)
        for (std::uint32_t position = 0; position < ring_blocks; ++position) {
          CAPTURE(request.name);
          CAPTURE(size);
          CAPTURE(position);
          CHECK(wrong_at(position, request) == "");
        }
    };
    check(std::span<const std::byte, 1>(data.data(), 1));
    check(std::span<const std::byte, 8>(data.data(), 8));
    check(std::span<const std::byte, 28>(data.data(), 28));
    check(std::span<const std::byte, 44>(data.data(), 44));
    check(std::span<const std::byte, 64>(data.data(), 64));
    check(std::span<const std::byte, 100>(data.data(), 100));
  }

  TEST_CASE("inline bytes are read exactly: a message at the very end of its memory is no fault") {
    Rig rig(shape());
    for (std::size_t size = 1; size <= 200; ++size) {
      // The sanitizer watches both ends of a heap block.
      const std::vector<std::byte> exact(size, std::byte{7});
      CHECK(rig.sq.burst().send_inline(exact));
      rig.complete_all();
      rig.poll_all();
    }
  }

  TEST_CASE("gather lists of every length lie where mlx5 has them, at every ring position") {
    for (std::uint32_t count = 0; count <= max_sge; ++count)
      for (std::uint32_t position = 0; position < ring_blocks; ++position) {
        std::vector<Sge> list;
        for (std::uint32_t i = 0; i < count; ++i) list.push_back({buffer + i, 100 + i, 0x1000 + i});
        const auto expect = [&](ExpectedWqe wqe) {
          for (const Sge& sge : list) wqe.data(sge.bytes, sge.lkey, sge.address);
          return wqe;
        };
        const Request shapes[] = {
            {"SEND", [&](SendBurst& b, const WrOptions& o) { return b.send(list, o); },
             [&](std::uint8_t f) { return expect(ExpectedWqe(MLX5_OPCODE_SEND, qpn, f)); }},
            {"SEND_WITH_IMM", [&](SendBurst& b, const WrOptions& o) { return b.send_with_imm(list, imm, o); },
             [&](std::uint8_t f) { return expect(ExpectedWqe(MLX5_OPCODE_SEND_IMM, qpn, f, imm_be)); }},
            {"WRITE", [&](SendBurst& b, const WrOptions& o) { return b.write(list, remote, o); },
             [&](std::uint8_t f) {
               return expect(ExpectedWqe(MLX5_OPCODE_RDMA_WRITE, qpn, f).remote(remote.address, remote.rkey));
             }},
            {"WRITE_WITH_IMM",
             [&](SendBurst& b, const WrOptions& o) { return b.write_with_imm(list, remote, imm, o); },
             [&](std::uint8_t f) {
               return expect(ExpectedWqe(MLX5_OPCODE_RDMA_WRITE_IMM, qpn, f, imm_be)
                                 .remote(remote.address, remote.rkey));
             }},
            {"READ", [&](SendBurst& b, const WrOptions& o) { return b.read(list, remote, o); },
             [&](std::uint8_t f) {
               return expect(ExpectedWqe(MLX5_OPCODE_RDMA_READ, qpn, f).remote(remote.address, remote.rkey));
             }},
            {"UD SEND", [&](SendBurst& b, const WrOptions& o) { return b.send_to(to, list, o); },
             [&](std::uint8_t f) {
               return expect(ExpectedWqe(MLX5_OPCODE_SEND, qpn, f).datagram(to.segment));
             }},
            {"UD SEND_WITH_IMM",
             [&](SendBurst& b, const WrOptions& o) { return b.send_to_with_imm(to, list, imm, o); },
             [&](std::uint8_t f) {
               return expect(ExpectedWqe(MLX5_OPCODE_SEND_IMM, qpn, f, imm_be).datagram(to.segment));
             }},
        };
        for (const Request& request : shapes) {
          CAPTURE(request.name);
          CAPTURE(count);
          CAPTURE(position);
          CHECK(wrong_at(position, request) == "");
        }
      }
  }

  TEST_CASE("entries of zero bytes are left out of a gather list, wherever they stand") {
    for (unsigned mask = 0; mask < 32; ++mask) {
      std::vector<Sge> list;
      for (unsigned i = 0; i < 5; ++i)
        list.push_back({buffer + i, (mask >> i & 1) != 0 ? 50 + i : 0, 0x1000 + i});
      const Request request{"WRITE",
                            [&](SendBurst& b, const WrOptions& o) { return b.write(list, remote, o); },
                            [&](std::uint8_t f) {
                              ExpectedWqe wqe(MLX5_OPCODE_RDMA_WRITE, qpn, f);
                              wqe.remote(remote.address, remote.rkey);
                              for (const Sge& sge : list)
                                if (sge.bytes != 0) wqe.data(sge.bytes, sge.lkey, sge.address);
                              return wqe;
                            }};
      CAPTURE(mask);
      CHECK(wrong_at(14, request) == "");
      CHECK(wrong_at(15, request) == "");
    }
  }

  TEST_CASE("a request of zero bytes has no data segment: mlx5 would take it for two gigabytes") {
    const Sge empty{buffer, 0, local.lkey};
    const Request shapes[] = {
        {"SEND", [&](SendBurst& b, const WrOptions& o) { return b.send(empty, o); },
         [](std::uint8_t f) { return ExpectedWqe(MLX5_OPCODE_SEND, qpn, f); }},
        {"SEND_WITH_IMM", [&](SendBurst& b, const WrOptions& o) { return b.send_with_imm(empty, imm, o); },
         [](std::uint8_t f) { return ExpectedWqe(MLX5_OPCODE_SEND_IMM, qpn, f, imm_be); }},
        {"SEND_WITH_INV", [&](SendBurst& b, const WrOptions& o) { return b.send_with_inv(empty, imm, o); },
         [](std::uint8_t f) { return ExpectedWqe(MLX5_OPCODE_SEND_INVAL, qpn, f, imm_be); }},
        {"WRITE", [&](SendBurst& b, const WrOptions& o) { return b.write(empty, remote, o); },
         [](std::uint8_t f) {
           return ExpectedWqe(MLX5_OPCODE_RDMA_WRITE, qpn, f).remote(remote.address, remote.rkey);
         }},
        {"READ", [&](SendBurst& b, const WrOptions& o) { return b.read(empty, remote, o); },
         [](std::uint8_t f) {
           return ExpectedWqe(MLX5_OPCODE_RDMA_READ, qpn, f).remote(remote.address, remote.rkey);
         }},
        {"UD SEND", [&](SendBurst& b, const WrOptions& o) { return b.send_to(to, empty, o); },
         [](std::uint8_t f) { return ExpectedWqe(MLX5_OPCODE_SEND, qpn, f).datagram(to.segment); }},
        {"UD SEND_WITH_IMM",
         [&](SendBurst& b, const WrOptions& o) { return b.send_to_with_imm(to, empty, imm, o); },
         [](std::uint8_t f) {
           return ExpectedWqe(MLX5_OPCODE_SEND_IMM, qpn, f, imm_be).datagram(to.segment);
         }},
    };
    for (const Request& request : shapes)
      for (std::uint32_t position : {0U, 15U}) {
        CAPTURE(request.name);
        CHECK(wrong_at(position, request) == "");
      }
  }

  TEST_CASE("the WQEs of one burst follow each other, block behind block") {
    const auto data = pattern(100);
    Rig rig(shape(), 16);
    rig.advance(11);
    {
      SendBurst burst = rig.sq.burst();
      CHECK(burst.send_inline(std::span(data).first(64), {.wr_id = 1}));  // 2 blocks: 11, 12
      CHECK(burst.write(local, remote, {.wr_id = 2}));                    // 13
      CHECK(burst.send_to(to, local, {.wr_id = 3}));                      // 14, 15
      CHECK(burst.read(local, remote, {.wr_id = 4}));                     // 0
      CHECK(burst.size() == 4);
      CHECK(burst.ring() == 4);
      CHECK(burst.size() == 0);
    }
    const auto wqes = rig.complete_all();
    REQUIRE(wqes.size() == 4);
    CHECK(ExpectedWqe(MLX5_OPCODE_SEND, qpn, 0)
              .inline_data(std::span(data).first(64))
              .difference(wqes[0].bytes, 11) == "");
    CHECK(ExpectedWqe(MLX5_OPCODE_RDMA_WRITE, qpn, 0)
              .remote(remote.address, remote.rkey)
              .data(local.bytes, local.lkey, local.address)
              .difference(wqes[1].bytes, 13) == "");
    CHECK(ExpectedWqe(MLX5_OPCODE_SEND, qpn, 0)
              .datagram(to.segment)
              .data(local.bytes, local.lkey, local.address)
              .difference(wqes[2].bytes, 14) == "");
    CHECK(ExpectedWqe(MLX5_OPCODE_RDMA_READ, qpn, ce)
              .remote(remote.address, remote.rkey)
              .data(local.bytes, local.lkey, local.address)
              .difference(wqes[3].bytes, 16) == "");
    CHECK(rig.sq.bytes_posted() == 64 + 3 * std::uint64_t{local.bytes});
    CHECK(rig.sq.posted_total() == 11 + 4);
  }
}
