// What two connected processes do in turn: each gives something of its own and gets the peer's, or
// waits until the other has come as far. Both sides call the same function; the client speaks first.
//
// Errors: as in message.hpp.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "pollen/net/deadline.hpp"
#include "pollen/net/message.hpp"
#include "pollen/net/socket.hpp"

namespace pollen::net {

// One message each way. `judge` gets the peer's body; if it throws, the peer is told why. The server
// judges before it answers, so that a client hears of a refusal where it waits for the answer.
using Judge = std::function<void(std::span<const std::byte> theirs)>;
void exchange_message(Socket& socket, MessageType type, std::span<const std::byte> mine, const Judge& judge,
                      const Deadline& deadline);

// Any number of bytes up to max_bytes each way, in messages of 32 KiB in turn. Each message's body:
// total bytes (u32), offset of what follows (u32), bytes. Both sides send as many messages as the
// longer of the two needs.
std::vector<std::byte> exchange_bytes(Socket& socket, std::span<const std::byte> mine, std::size_t max_bytes,
                                      const Deadline& deadline, MessageType type = MessageType::bytes);

// Returns when both sides have reached the point of this name. Names that differ are an error.
void barrier(Socket& socket, std::string_view tag, const Deadline& deadline);

}  // namespace pollen::net
