#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "../lcore/child.hpp"
#include "pollen/net/port_holder.hpp"
#include "pollen/net/tcp_connect.hpp"
#include "pollen/net/tcp_listener.hpp"
#include "sides.hpp"

namespace pollen::net {

namespace {

// A port that nobody listens on: it was free a moment ago.
std::uint16_t free_port() { return TcpListener(loopback).port(); }

class TreeOfProc {
 public:
  TreeOfProc() {
    std::string name = std::filesystem::temp_directory_path() / "pollen-proc-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    root_ = name;
    std::filesystem::create_directories(root_ / "net");
  }
  ~TreeOfProc() { std::filesystem::remove_all(root_); }
  TreeOfProc(const TreeOfProc&) = delete;
  TreeOfProc& operator=(const TreeOfProc&) = delete;

  const std::filesystem::path& root() const { return root_; }
  void write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  void link(const std::string& file, const std::string& target) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::filesystem::create_symlink(target, root_ / file);
  }

 private:
  std::filesystem::path root_;
};

}  // namespace

TEST_SUITE("net.connect") {
  TEST_CASE("a port where nobody listens is refused at once where no retry is wanted") {
    const auto error =
        error_of([] { tcp_connect({.host = "127.0.0.1", .port = free_port()}, soon(), WhenRefused::fail); });
    CHECK(has_code(error, ECONNREFUSED));
    CHECK_MESSAGE(says(error, "nothing listens there"), what(error));
    CHECK(says(error, "Start the server first"));
  }

  TEST_CASE("refusals are retried until the deadline, which is then an answer") {
    const auto error =
        error_of([] { tcp_connect({.host = "127.0.0.1", .port = free_port()}, Deadline::after(200ms)); });
    CHECK(has_code(error, ECONNREFUSED));
    CHECK_MESSAGE(says(error, "tried for "), what(error));
  }

  TEST_CASE("a server that starts after its client is found") {
    const std::uint16_t port = free_port();
    const Errors errors = together([&] { tcp_connect({.host = "127.0.0.1", .port = port}, soon()); },
                                   [&] {
                                     std::this_thread::sleep_for(150ms);
                                     TcpListener({.host = "127.0.0.1", .port = port}).accept(soon());
                                   });
    CHECK_MESSAGE(!errors.client, what(errors.client));
    CHECK_MESSAGE(!errors.server, what(errors.server));
  }

  TEST_CASE("a stop ends the retries at once") {
    const Fd stop(eventfd(1, EFD_CLOEXEC));
    const auto error = error_of(
        [&] { tcp_connect({.host = "127.0.0.1", .port = free_port()}, Deadline::after(1h, stop.get())); });
    CHECK(has_code(error, ECANCELED));
  }

  TEST_CASE("a host that does not answer costs no more than the deadline") {
    // A listener whose queue is full drops further attempts.
    TcpListener listener(loopback, {.backlog = 0});
    const Address address{.host = "127.0.0.1", .port = listener.port()};
    std::vector<Socket> filling;
    const auto error = error_of([&] {
      for (int i = 0; i < 64; ++i) filling.push_back(tcp_connect(address, Deadline::after(100ms)));
    });
    CHECK(has_code(error, ETIMEDOUT));
    CHECK_MESSAGE(says(error, "no answer for "), what(error));
  }
}

TEST_SUITE("net.listener") {
  TEST_CASE("nobody connecting in time is an error of its own") {
    TcpListener listener(loopback);
    const auto error = error_of([&] { listener.accept(Deadline::after(20ms)); });
    CHECK(has_code(error, ETIMEDOUT));
    CHECK(says(error, "nobody connected in time"));
  }

  TEST_CASE("a stop ends accept at once") {
    TcpListener listener(loopback);
    const Fd stop(eventfd(1, EFD_CLOEXEC));
    CHECK(has_code(error_of([&] { listener.accept(Deadline::after(1h, stop.get())); }), ECANCELED));
  }

  TEST_CASE("both families reach a listener on all addresses") {
    TcpListener listener({.host = "", .port = 0});
    tcp_connect({.host = "127.0.0.1", .port = listener.port()}, soon());
    listener.accept(soon());
    const bool has_ipv6 = !error_of([] { TcpListener({.host = "::1", .port = 0}); });
    if (!has_ipv6) {
      MESSAGE("skipped in part: this machine has no IPv6 loopback");
      return;
    }
    tcp_connect({.host = "::1", .port = listener.port()}, soon());
    CHECK(listener.accept(soon()).peer().starts_with("[::1]:"));
  }

  TEST_CASE("a port in use is refused with the program that holds it and the way out") {
    TcpListener holder(loopback);
    const auto error = error_of([&] { TcpListener({.host = "127.0.0.1", .port = holder.port()}); });
    CHECK(has_code(error, EADDRINUSE));
    CHECK_MESSAGE(says(error, "port " + std::to_string(holder.port()) + " is in use by test_net (pid " +
                                  std::to_string(getpid()) + ")"),
                  what(error));
    CHECK(says(error, "choose another port on both sides"));
  }

  TEST_CASE("a port is free again as soon as its holder is gone, whatever became of its connections") {
    std::uint16_t port = 0;
    {
      TcpListener listener(loopback);
      port = listener.port();
      Socket client = tcp_connect({.host = "127.0.0.1", .port = port}, soon());
      Socket server = listener.accept(soon());
      { const Socket first_to_close = std::move(server); }  // its side keeps the port in TIME_WAIT
    }
    CHECK_FALSE(error_of([&] { TcpListener({.host = "127.0.0.1", .port = port}); }));
  }

  TEST_CASE("workers share a port where they ask for it") {
    TcpListener first(loopback, {.reuse_port = true});
    const Address same{.host = "127.0.0.1", .port = first.port()};
    CHECK_FALSE(error_of([&] { TcpListener(same, {.reuse_port = true}); }));
    CHECK(has_code(error_of([&] { TcpListener{same}; }), EADDRINUSE));
  }

  TEST_CASE("an address of another host is refused") {
    const auto error = error_of([] { TcpListener({.host = "192.0.2.1", .port = 0}); });
    CHECK(has_code(error, EADDRNOTAVAIL));
    CHECK(says(error, "this host has no such address"));
  }
}

TEST_SUITE("net.port_holder") {
  const std::string heading =
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

  TEST_CASE("the holder is found by its socket's inode") {
    TreeOfProc proc;
    proc.write("net/tcp", heading +
                              "   0: 0100007F:4853 0200007F:C001 01 00000000:00000000 00:00000000 00000000  "
                              "1000        0 111 1 0\n"
                              "   1: 00000000:4853 00000000:0000 0A 00000000:00000000 00:00000000 00000000  "
                              "1000        0 222 1 0\n");
    proc.write("41/comm", "other\n");
    proc.link("41/fd/3", "socket:[111]");
    proc.write("42/comm", "rdma_bw\n");
    proc.link("42/fd/0", "/dev/null");
    proc.link("42/fd/7", "socket:[222]");
    CHECK(port_holder(0x4853, proc.root()) == "rdma_bw (pid 42)");
    CHECK(port_holder(0x4854, proc.root()).empty());
  }

  TEST_CASE("a holder whose descriptors can't be read is known by its user") {
    TreeOfProc proc;
    proc.write("net/tcp6",
               heading +
                   "   0: 00000000000000000000000000000000:4853 00000000000000000000000000000000:0000 0A "
                   "00000000:00000000 00:00000000 00000000  1000        0 222 1 0\n");
    CHECK(port_holder(0x4853, proc.root()) == "a process of user 1000");
  }

  TEST_CASE("damaged tables name nobody") {
    TreeOfProc proc;
    CHECK(port_holder(1, proc.root() / "absent").empty());
    proc.write("net/tcp", heading + "   0: xyz\n 1: :::: : 0A\n 2: 00000000:FFFFF 0 0A a a a 0 0 5\n\n");
    CHECK(port_holder(0xffff, proc.root()).empty());
  }
}

}  // namespace pollen::net
