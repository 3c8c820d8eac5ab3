#include "parameters.hpp"

#include <doctest/doctest.h>

#include <string>

#include "pollen/base/error.hpp"

using namespace pollen;
using bw::Given;
using bw::Op;
using bw::read_parameters;
using bw::settle;
using net::Role;

namespace {

std::string refusal(const Given& given) {
  try {
    read_parameters(given);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

bool says(const std::string& sentence, const char* part) { return sentence.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("What nobody gave is perftest's default") {
  const auto write = read_parameters({});
  CHECK(write.op == Op::write);
  CHECK(write.transport == driver::Transport::rc);
  CHECK(write.sizes == std::vector<std::uint64_t>{65536});
  CHECK(write.amount == 5000);
  CHECK(write.tx_depth == 128);
  CHECK(write.rx_depth == 512);
  CHECK(read_parameters({{"op", "send"}}).amount == 1000);
}

TEST_CASE("A parameter that one side was given holds for both") {
  const Given client{{"op", "send"}, {"size", "1024"}};
  const Given server{{"qps", "4"}};
  const Given both{{"op", "send"}, {"size", "1024"}, {"qps", "4"}};
  CHECK(settle(client, server, Role::client) == both);
  CHECK(settle(client, server, Role::server) == both);
}

TEST_CASE("Parameters that contradict each other are refused in the same words on both sides") {
  const Given client{{"op", "send"}, {"size", "1024"}};
  const Given server{{"op", "read"}, {"size", "2048"}};
  std::string words[2];
  for (const Role role : {Role::client, Role::server}) try {
      settle(client, server, role);
    } catch (const Error& error) {
      words[role == Role::client] = error.what();
    }
  CHECK(words[0] == words[1]);
  CHECK(says(words[0], "op (--op): the client has send, the server read"));
  CHECK(says(words[0], "size (-s): the client has 1024, the server 2048"));
}

TEST_CASE("Depths are each side's own, and the other's where only that one gave them") {
  const Given client{{"tx-depth", "16"}};
  const Given server{{"tx-depth", "32"}};
  CHECK(settle(client, server, Role::client).at("tx-depth") == "16");
  CHECK(settle(client, server, Role::server).at("tx-depth") == "32");
  CHECK(settle(client, Given{}, Role::server).at("tx-depth") == "16");
}

TEST_CASE("Values from a peer get the same checks as one's own") {
  CHECK(says(refusal({{"size", "0"}}), "a message of 0 bytes has no bandwidth"));
  CHECK(says(refusal({{"size", "3221225472"}}), "1 GiB at most"));
  CHECK(says(refusal({{"op", "push"}}), "there is no such operation"));
  CHECK(says(refusal({{"connection", "XRC"}}), "It is RC or UD"));
  CHECK(says(refusal({{"connection", "UD"}, {"op", "write"}}), "a UD QP can only SEND"));
  CHECK(says(refusal({{"length", "0 iterations"}}), "it has to be 1 to"));
  CHECK(says(refusal({{"length", "10 weeks"}}), "neither iterations nor seconds"));
  CHECK(says(refusal({{"qps", "0"}}), "it has to be 1 to"));
  CHECK(says(refusal({{"tx-depth", "0"}}), "it has to be 1 to"));
  CHECK(says(refusal({{"lcores", "99999"}}), "it has to be 1 to"));
  CHECK(says(refusal({{"direction", "sideways"}}), "one way"));
  CHECK(says(refusal({{"post-list", "200"}}), "no more than the 128 of the depth"));
  CHECK(says(refusal({{"colour", "red"}}), "knows no such parameter"));
}

TEST_CASE("All sizes are perftest's powers of two") {
  const auto sizes = bw::all_sizes();
  CHECK(sizes.front() == 2);
  CHECK(sizes.back() == 8388608);
  CHECK(sizes.size() == 23);
}

TEST_CASE("Large messages are signalled each, small ones rarely, and never more rarely than the depth") {
  bw::TestParameters test;
  CHECK(bw::signal_every(test, 65536) == 1);
  CHECK(bw::signal_every(test, 64) == 32);
  test.tx_depth = 1;
  CHECK(bw::signal_every(test, 64) == 1);
  test.signal_every = 100;
  test.tx_depth = 10;
  CHECK(bw::signal_every(test, 64) == 10);
}
