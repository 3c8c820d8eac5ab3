#include "pollen/drivers/soft/pcap.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <pcap/pcap.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "pollen/base/error.hpp"
#include "roce_frames.hpp"

using namespace pollen::soft;
using namespace pollen::soft::test;

namespace {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "pollen-pcap-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

struct Captured {
  std::uint64_t time_ns;
  std::vector<std::byte> bytes;
};

std::vector<Captured> read_capture(const std::string& path) {
  char error[PCAP_ERRBUF_SIZE] = {};
  pcap_t* const handle =
      pcap_open_offline_with_tstamp_precision(path.c_str(), PCAP_TSTAMP_PRECISION_NANO, error);
  REQUIRE_MESSAGE(handle != nullptr, error);
  CHECK(pcap_datalink(handle) == DLT_EN10MB);
  std::vector<Captured> all;
  pcap_pkthdr* header = nullptr;
  const u_char* data = nullptr;
  int result = 0;
  while ((result = pcap_next_ex(handle, &header, &data)) == 1) {
    const auto* bytes = reinterpret_cast<const std::byte*>(data);
    CHECK(header->len == header->caplen);
    all.push_back({static_cast<std::uint64_t>(header->ts.tv_sec) * 1'000'000'000 +
                       static_cast<std::uint64_t>(header->ts.tv_usec),
                   {bytes, bytes + header->caplen}});
  }
  CHECK(result == PCAP_ERROR_BREAK);  // the end, and not a broken record
  pcap_close(handle);
  return all;
}

std::vector<std::string> lines_of(const std::string& command) {
  std::vector<std::string> lines;
  std::FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string line;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    if (c != '\n') {
      line.push_back(static_cast<char>(c));
      continue;
    }
    lines.push_back(line);
    line.clear();
  }
  REQUIRE_MESSAGE(pclose(pipe) == 0, command);
  return lines;
}

std::string failure(const std::string& path) {
  try {
    const PcapWriter writer(path);
  } catch (const pollen::Error& error) {
    return error.what();
  }
  return "no failure";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr std::uint64_t noon_ns = 1'700'000'000'123'456'789;

}  // namespace

TEST_SUITE("soft.pcap") {
  TEST_CASE("frames are read back with their bytes and their nanoseconds") {
    const TempDir dir;
    const std::string path = dir.file("a.pcap");
    std::vector<std::vector<std::byte>> frames;
    {
      PcapWriter writer(path);
      for (const PacketOp op : all_ops()) {
        frames.push_back(sample_frame(op, has_payload(op) ? max_mtu_bytes : 0, false));
        writer.write(noon_ns + frames.size(), frames.back());
      }
      CHECK(writer.frames() == frames.size());
    }
    const auto captured = read_capture(path);
    REQUIRE(captured.size() == frames.size());
    for (std::size_t i = 0; i < frames.size(); ++i) {
      CHECK(captured[i].time_ns == noon_ns + i + 1);
      CHECK(captured[i].bytes == frames[i]);
    }
  }

  TEST_CASE("a flushed capture is whole while the writer goes on") {
    const TempDir dir;
    PcapWriter writer(dir.file("a.pcap"));
    writer.write(noon_ns, sample_frame(PacketOp::send_only, 8, true));
    writer.flush();
    CHECK(read_capture(writer.path()).size() == 1);
    writer.write(noon_ns, sample_frame(PacketOp::send_only, 8, true));
    writer.close();
    CHECK(read_capture(writer.path()).size() == 2);
    writer.write(noon_ns, sample_frame(PacketOp::send_only, 8, true));
    writer.flush();
    CHECK(writer.frames() == 2);
  }

  TEST_CASE("frames of several threads don't mix") {
    const TempDir dir;
    const std::string path = dir.file("a.pcap");
    {
      PcapWriter writer(path);
      const auto write_many = [&writer](std::size_t payload_bytes) {
        const auto frame = sample_frame(PacketOp::send_only, payload_bytes, true);
        for (int i = 0; i < 500; ++i) writer.write(noon_ns, frame);
      };
      std::thread other(write_many, 1000);
      write_many(100);
      other.join();
    }
    const auto captured = read_capture(path);
    CHECK(captured.size() == 1000);
    for (const Captured& frame : captured) CHECK(decode(frame.bytes));
  }

  TEST_CASE("a file that cannot be created is named, with the cause and the way out") {
    const TempDir dir;
    const std::string missing = dir.file("missing/a.pcap");
    const std::string sentence = failure(missing);
    CHECK(contains(sentence, "cannot create the capture file on " + missing));
    CHECK(contains(sentence, "No such file or directory"));
    CHECK(contains(sentence, "Create the directory first"));
    CHECK(contains(failure(std::filesystem::temp_directory_path().string()), "Name a file, not a directory"));
    CHECK(contains(failure(""), "cannot create the capture file"));
  }

  TEST_CASE("a full disk is reported when the capture is flushed or closed") {
    if (!std::filesystem::exists("/dev/full")) {
      MESSAGE("skipped: there is no /dev/full to write to");
      return;
    }
    PcapWriter writer("/dev/full");
    const auto frame = sample_frame(PacketOp::send_only, 4096, true);
    for (int i = 0; i < 100; ++i) writer.write(noon_ns, frame);
    CHECK(writer.frames() < 100);
    CHECK_THROWS_WITH_AS(
        writer.flush(),
        "cannot write the capture file on /dev/full: No space left on device. Free some space, or "
        "name a file on another file system",
        pollen::Error);
    CHECK_THROWS_AS(writer.close(), pollen::Error);
    CHECK_NOTHROW(writer.close());
  }

  TEST_CASE("tshark reads every opcode as RoCEv2, field by field") {
    if (std::system("tshark --version >/dev/null 2>&1") != 0) {
      MESSAGE("skipped: tshark is not installed");
      return;
    }
    const TempDir dir;
    const std::string path = dir.file("a.pcap");
    std::vector<std::string> expected;
    {
      PcapWriter writer(path);
      for (const bool ipv4 : {true, false}) {
        for (const PacketOp op : all_ops()) {
          const std::size_t bytes = has_payload(op) ? 21 : 0;
          const auto frame = sample_frame(op, bytes, ipv4);
          writer.write(noon_ns, frame);

          const std::uint16_t parts = packet_parts(op);
          const auto when = [parts](int wanted, const char* text) { return parts & wanted ? text : ""; };
          std::string crc = "0x";
          for (const std::byte byte : std::span(frame).last(4))
            crc += fmt::format("{:02x}", std::to_integer<int>(byte));
          const int remote = part_reth | part_atomic;
          expected.push_back(
              fmt::format("{}|", ipv4 ? "1" : "") +  // the checksum is good
              fmt::format("{}|{}|0|32769|0x123456|1|11259375|", static_cast<int>(op), (4 - bytes % 4) % 4) +
              fmt::format("{}|{}|{}|", when(remote, "0x1122334455667788"), when(remote, "0xaabbccdd"),
                          when(part_reth, "2147483649")) +
              fmt::format("{}|{}|", when(part_deth, "0x00000000aabbccdd"), when(part_deth, "0x00654321")) +
              fmt::format("{}|{}|", when(part_aeth, "31"), when(part_aeth, "6636321")) +
              fmt::format("{}|{}|", when(part_atomic, "72623859790382856"),
                          when(part_atomic, "1230066625199609624")) +
              fmt::format("{}|", when(part_atomic_ack, "2387509390608836392")) +
              fmt::format("{}|{}|", when(part_imm, "deadbeef"), when(part_ieth, "deadbeef")) + crc + "||");
        }
      }
    }
    std::string command =
        "tshark -n -r '" + path +
        "' -o udp.ignore_ipv6_zero_checksum:TRUE -T fields -E separator='|' -E occurrence=f";
    for (const char* field : {"ip.checksum.status",
                              "infiniband.bth.opcode",
                              "infiniband.bth.padcnt",
                              "infiniband.bth.tver",
                              "infiniband.bth.p_key",
                              "infiniband.bth.destqp",
                              "infiniband.bth.a",
                              "infiniband.bth.psn",
                              "infiniband.reth.va",
                              "infiniband.reth.r_key",
                              "infiniband.reth.dmalen",
                              "infiniband.deth.q_key",
                              "infiniband.deth.srcqp",
                              "infiniband.aeth.syndrome",
                              "infiniband.aeth.msn",

                              "infiniband.atomiceth.swapdt",
                              "infiniband.atomiceth.cmpdt",
                              "infiniband.atomicacketh.origremdt",
                              "infiniband.immdt",
                              "infiniband.ieth",
                              "infiniband.invariant.crc",
                              "_ws.malformed",
                              "_ws.expert.message"})
      command += fmt::format(" -e {}", field);
    const auto lines = lines_of(command + " -o ip.check_checksum:TRUE 2>/dev/null");
    REQUIRE(lines.size() == expected.size());
    for (std::size_t i = 0; i < lines.size(); ++i) CHECK(lines[i] == expected[i]);
  }
}
