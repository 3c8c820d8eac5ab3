// The handshake, whole: see docs/handshake.md for its bytes. In order:
//
//   client                               server
//   tcp_connect(address)                 Greeter::next()          a connection that said hello
//   exchange_hello(socket, mine)           (part of it)           what holds for both
//   exchange_endpoints(socket, mine)     exchange_endpoints(…)    the peer's QPs
//   barrier(socket, "ready")             barrier(socket, "ready") both can receive
//
// Each step has a time limit and ends on both sides with the same words when one of them refuses.
// Afterwards the socket is the connection's death watch: Socket::peer_closed().
#pragma once

#include "pollen/net/endpoint.hpp"
#include "pollen/net/exchange.hpp"
#include "pollen/net/gid.hpp"
#include "pollen/net/greeter.hpp"
#include "pollen/net/hello.hpp"
#include "pollen/net/tcp_connect.hpp"
