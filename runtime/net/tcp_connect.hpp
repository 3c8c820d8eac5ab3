// Connects to a listener, which may not be up yet.
//
// Errors: pollen::Error, ECONNREFUSED, ETIMEDOUT, ECANCELED, EADDRNOTAVAIL (no such host), or what
// the network says.
#pragma once

#include "pollen/net/address.hpp"
#include "pollen/net/deadline.hpp"
#include "pollen/net/socket.hpp"

namespace pollen::net {

enum class WhenRefused : std::uint8_t {
  fail,   // at once
  retry,  // until the deadline: the other side may be starting
};

// Tries each address of the host in turn.
Socket tcp_connect(const Address& address, const Deadline& deadline,
                   WhenRefused when_refused = WhenRefused::retry);

}  // namespace pollen::net
