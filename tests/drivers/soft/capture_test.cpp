// What SoftOptions::pcap_path leaves: frames that tshark takes for RoCEv2 without a complaint.
#include <fmt/format.h>

#include <map>
#include <sstream>
#include <string>

#include "pollen/drivers/soft/packet.hpp"
#include "process_rig.hpp"

using namespace rig;
using soft::PacketOp;

namespace {

struct Frame {
  std::string protocols;
  unsigned opcode;
  std::uint32_t destination_qp;
  std::uint32_t psn;
  std::string expert;
};

bool have_tshark() { return std::system("tshark --version >/dev/null 2>&1") == 0; }

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  char buffer[4096];
  for (std::size_t got; (got = fread(buffer, 1, sizeof buffer, pipe)) != 0;) text.append(buffer, got);
  pclose(pipe);
  return text;
}

// RoCEv2 has no UDP checksum, over IPv6 neither. What the payloads are taken for is not asked.
std::vector<Frame> dissect(const std::string& path) {
  std::istringstream lines(output_of(
      fmt::format("tshark -r {} -o udp.check_checksum:TRUE -o ip.check_checksum:TRUE -o "
                  "udp.ignore_ipv6_zero_checksum:TRUE "
                  "--disable-protocol rpcordma --disable-protocol infiniband.eoib --disable-protocol lnet "
                  "--disable-protocol smb_direct -T fields -E separator=';' -E occurrence=f "
                  "-e frame.protocols -e infiniband.bth.opcode -e infiniband.bth.destqp -e "
                  "infiniband.bth.psn -e _ws.expert "
                  "2>/dev/null",
                  path)));
  std::vector<Frame> frames;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string field[5];
    for (auto& text : field) std::getline(fields, text, ';');
    const auto number = [](const std::string& text) {
      return text.empty() ? ~0U : static_cast<std::uint32_t>(std::stoul(text, nullptr, 0));
    };
    frames.push_back({field[0], number(field[1]), number(field[2]), number(field[3]), field[4]});
  }
  return frames;
}

// Each frame is RoCEv2 with nothing malformed.
void check_clean(const std::vector<Frame>& frames) {
  REQUIRE_FALSE(frames.empty());
  std::size_t bad = 0;
  for (const Frame& frame : frames)
    if (frame.protocols.find("udp:infiniband") == std::string::npos || frame.opcode == ~0U ||
        !frame.expert.empty()) {
      if (bad++ < 3)
        MESSAGE(
            fmt::format("{} opcode {:#x} psn {} {}", frame.protocols, frame.opcode, frame.psn, frame.expert));
    }
  CHECK(bad == 0);
}

std::vector<PacketOp> ops_to(const std::vector<Frame>& frames, std::uint32_t qpn) {
  std::vector<PacketOp> ops;
  for (const Frame& frame : frames)
    if (frame.destination_qp == qpn) ops.push_back(static_cast<PacketOp>(frame.opcode));
  return ops;
}

}  // namespace

TEST_SUITE("soft.capture") {
  TEST_CASE(
      "all connected operations, in one packet and in many, dissect with their opcodes and consecutive "
      "PSNs") {
    if (!have_tshark()) {
      MESSAGE("skipped: there is no tshark");
      return;
    }
    TempDir dir;
    soft::SoftOptions wire = in_process();
    wire.pcap_path = dir.file("capture.pcap");
    std::uint32_t a_qpn = 0;
    std::uint32_t b_qpn = 0;
    std::vector<PacketOp> expected;
    {
      using enum PacketOp;
      Pair pair({}, wire);
      a_qpn = pair.a.qp().qpn();
      b_qpn = pair.b.qp().qpn();
      for (int i = 0; i < 10; ++i) pair.b.qp().post_receive(pair.b.sge(0, 8192));
      pair.b.qp().publish_receives();
      auto window = pair.b.pd->register_memory(std::span(pair.b.memory).subspan(0, 4096),
                                               driver::all_access | driver::Access::remote_invalidate);
      {
        auto burst = pair.a.qp().send_burst();
        burst.send(pair.a.sge(0, 100));
        burst.send(pair.a.sge(0, 3001));
        burst.send_with_imm(pair.a.sge(0, 5), 7);
        burst.send_with_imm(pair.a.sge(0, 1025), 7);
        burst.write(pair.a.sge(0, 1), pair.b.remote(0));
        burst.write(pair.a.sge(0, 3000), pair.b.remote(0));
        burst.write_with_imm(pair.a.sge(0, 2), pair.b.remote(0), 1);
        burst.write_with_imm(pair.a.sge(0, 2048), pair.b.remote(0), 1);
        burst.write(Sge{}, pair.b.remote(0));
        burst.read(pair.a.sge(0, 9), pair.b.remote(0));
        burst.read(pair.a.sge(0, 2500), pair.b.remote(0));
        burst.fetch_add(pair.a.sge(0, 8), pair.b.remote(64), 1);
        burst.cmp_swap(pair.a.sge(0, 8), pair.b.remote(64), 1, 2);
        burst.send_with_inv(pair.a.sge(0, 3), window->rkey());
      }
      expected = {send_only,    send_first,     send_middle, send_last,      send_only_imm,
                  send_first,   send_last_imm,  write_only,  write_first,    write_middle,
                  write_last,   write_only_imm, write_first, write_last_imm, write_only,
                  read_request, read_request,   fetch_add,   cmp_swap,       send_only_inv};
      REQUIRE(pair.until([&] { return pair.a.sent.size() == 14; }));
      for (const auto& done : pair.a.sent) REQUIRE(done.ok());
    }
    const auto frames = dissect(wire.pcap_path);
    check_clean(frames);
    CHECK(ops_to(frames, b_qpn) == expected);
    // A READ takes as many PSNs as its response has packets: 1, then 3.
    std::uint32_t psn = 0xfffff0;
    std::size_t i = 0;
    for (const Frame& frame : frames) {
      if (frame.destination_qp != b_qpn) continue;
      CHECK(frame.psn == psn);
      psn = (psn + (i++ == 16 ? 3 : 1)) & soft::psn_mask;
    }
    std::map<PacketOp, int> answers;
    for (const PacketOp op : ops_to(frames, a_qpn)) ++answers[op];
    CHECK(answers[PacketOp::read_response_only] == 1);
    CHECK(answers[PacketOp::read_response_first] == 1);
    CHECK(answers[PacketOp::read_response_middle] == 1);
    CHECK(answers[PacketOp::read_response_last] == 1);
    CHECK(answers[PacketOp::atomic_acknowledge] == 2);
    CHECK(answers[PacketOp::acknowledge] >= 1);
  }

  TEST_CASE("every payload length has a frame that dissects, over IPv4 and over IPv6") {
    if (!have_tshark()) {
      MESSAGE("skipped: there is no tshark");
      return;
    }
    TempDir dir;
    for (const std::uint32_t gid_index : {0U, 1U}) {
      CAPTURE(gid_index);
      soft::SoftOptions wire = in_process();
      wire.pcap_path = dir.file(fmt::format("lengths-{}.pcap", gid_index));
      {
        QpOptions options;
        options.rtr.mtu_bytes = 4096;
        auto device = soft::make_driver(wire)->open("");
        End a(*device, options);
        End b(*device, options);
        for (End* end : {&a, &b}) {
          driver::RtrConfig rtr = options.rtr;
          rtr.path.remote_gid = device->query_port().gids.at(gid_index).gid;
          rtr.path.local_gid_index = gid_index;
          rtr.remote_qpn = (end == &a ? b : a).qp().qpn();
          end->qp().connect(options.init, rtr, options.rts);
        }
        std::size_t posted = 0;
        for (std::uint32_t bytes = 0; bytes <= 4096; bytes += bytes < 70 ? 1 : 61) {
          a.qp().send_burst().write(a.sge(0, bytes), b.remote(0));
          ++posted;
          REQUIRE(within(std::chrono::seconds(10), [&] {
            a.turn();
            b.turn();
            return a.sent.size() == posted;
          }));
        }
      }
      const auto frames = dissect(wire.pcap_path);
      check_clean(frames);
      for (const Frame& frame : frames)
        REQUIRE(frame.protocols.find(gid_index == 0 ? "ipv6" : "eth:ethertype:ip:") != std::string::npos);
    }
  }

  TEST_CASE("datagrams dissect, between two devices") {
    if (!have_tshark()) {
      MESSAGE("skipped: there is no tshark");
      return;
    }
    TempDir dir;
    soft::SoftOptions wire = in_process();
    wire.pcap_path = dir.file("ud.pcap");
    std::uint32_t b_qpn = 0;
    {
      QpOptions options;
      options.config.transport = driver::Transport::ud;
      Pair pair(options, wire);
      b_qpn = pair.b.qp().qpn();
      driver::PathConfig path;
      path.remote_gid = pair.b.gid;
      path.local_gid_index = 1;
      const auto to = pair.a.port->create_address(*pair.a.pd, path, b_qpn, options.init.qkey);
      {
        auto burst = pair.a.qp().send_burst();
        burst.send_to(to, pair.a.sge(0, 10));
        burst.send_to_with_imm(to, pair.a.sge(0, 4096), 5);
        burst.send_to(to, Sge{});
      }
      REQUIRE(pair.until([&] { return pair.a.sent.size() == 3; }));
    }
    const auto frames = dissect(wire.pcap_path);
    check_clean(frames);
    CHECK(ops_to(frames, b_qpn) ==
          std::vector{PacketOp::ud_send_only, PacketOp::ud_send_only_imm, PacketOp::ud_send_only});
  }

  TEST_CASE("a process's capture has both directions of what it exchanges with another process") {
    if (!have_tshark()) {
      MESSAGE("skipped: there is no tshark");
      return;
    }
    TempDir dir;
    TempDir captures;
    const QpOptions options;
    Child child([&](Talk talk) -> int {
      // No capture there: what comes from it is written here.
      auto device = soft::make_driver(shared_memory(dir))->open("");
      End end(*device, options);
      meet(end, talk, options);
      while (!talk.pending()) end.turn();
      return 0;
    });
    soft::SoftOptions wire = shared_memory(dir);
    wire.pcap_path = captures.file("one.pcap");
    std::uint32_t qpn = 0;
    std::uint32_t peer_qpn = 0;
    {
      auto device = soft::make_driver(wire)->open("");
      End end(*device, options);
      const PeerInfo peer = meet(end, child.talk(), options);
      qpn = end.qp().qpn();
      peer_qpn = peer.qpn;
      {
        auto burst = end.qp().send_burst();
        burst.write(end.sge(0, 5000), {peer.address, peer.rkey});
        burst.read(end.sge(0, 5000), {peer.address, peer.rkey});
      }
      REQUIRE(within(std::chrono::seconds(10), [&] {
        end.turn();
        return end.sent.size() == 2;
      }));
      for (const auto& done : end.sent) CHECK(done.ok());
    }
    child.talk().send(char{1});
    CHECK(child.wait() == 0);
    const auto frames = dissect(wire.pcap_path);
    check_clean(frames);
    CHECK(ops_to(frames, peer_qpn).size() == 6);
    std::map<PacketOp, int> answers;
    for (const PacketOp op : ops_to(frames, qpn)) ++answers[op];
    CHECK(answers[PacketOp::read_response_first] == 1);
    CHECK(answers[PacketOp::read_response_middle] == 3);
    CHECK(answers[PacketOp::read_response_last] == 1);
  }
}
