#include "pollen/net/exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "pollen/net/wire.hpp"

namespace pollen::net {

namespace {

constexpr std::size_t chunk_bytes = 32 * 1024;
constexpr std::size_t max_tag_bytes = 64;

std::size_t chunks_of(std::size_t bytes) {
  return std::max<std::size_t>(1, (bytes + chunk_bytes - 1) / chunk_bytes);
}

std::vector<std::byte> encode_chunk(std::span<const std::byte> all, std::size_t index) {
  const std::size_t offset = std::min(index * chunk_bytes, all.size());
  Writer out;
  out.u32(static_cast<std::uint32_t>(all.size()));
  out.u32(static_cast<std::uint32_t>(offset));
  out.bytes(all.subspan(offset, std::min(chunk_bytes, all.size() - offset)));
  return out.take();
}

// What the peer has sent so far. Memory is taken for bytes that came, not for those announced.
struct Incoming {
  std::size_t total = 0;
  std::vector<std::byte> bytes;
};

void take_chunk(Incoming& incoming, std::span<const std::byte> body, std::size_t index,
                std::size_t max_bytes) {
  Reader in(body, "a part of a longer message");
  const std::size_t total = in.u32("the total");
  if (total > max_bytes)
    in.reject("the total", fmt::format("it says {} bytes, the limit is {}", total, max_bytes));
  if (index > 0 && total != incoming.total) in.reject("the total", "it changed on the way");
  incoming.total = total;
  if (in.u32("the offset") != incoming.bytes.size()) in.reject("the offset", "a part is missing");
  const auto part = in.bytes(std::min(chunk_bytes, total - incoming.bytes.size()), "the bytes");
  in.finish();
  incoming.bytes.insert(incoming.bytes.end(), part.begin(), part.end());
}

}  // namespace

void exchange_message(Socket& socket, MessageType type, std::span<const std::byte> mine, const Judge& judge,
                      const Deadline& deadline) {
  if (socket.role() == Role::client) send_message(socket, type, mine, deadline);
  const std::vector<std::byte> theirs = recv_message(socket, type, deadline);
  or_refuse(socket, [&] { judge(theirs); });
  if (socket.role() == Role::server) send_message(socket, type, mine, deadline);
}

std::vector<std::byte> exchange_bytes(Socket& socket, std::span<const std::byte> mine, std::size_t max_bytes,
                                      const Deadline& deadline, MessageType type) {
  max_bytes = std::min<std::size_t>(max_bytes, std::numeric_limits<std::uint32_t>::max());
  if (mine.size() > max_bytes)
    throw Error(EMSGSIZE, {.attempted = fmt::format("send {} bytes", mine.size()),
                           .why = fmt::format("the limit is {}", max_bytes)});
  Incoming theirs;
  std::size_t chunks = chunks_of(mine.size());
  for (std::size_t i = 0; i < chunks; ++i) {
    const Judge take = [&](std::span<const std::byte> body) { take_chunk(theirs, body, i, max_bytes); };
    exchange_message(socket, type, encode_chunk(mine, i), take, deadline);
    chunks = std::max(chunks, chunks_of(theirs.total));
  }
  return std::move(theirs.bytes);
}

void barrier(Socket& socket, std::string_view tag, const Deadline& deadline) {
  Writer mine;
  mine.text(tag, max_tag_bytes, "a barrier's name");
  const Judge compare = [&](std::span<const std::byte> body) {
    Reader in(body, "a barrier");
    const std::string theirs = in.text(max_tag_bytes, "the name");
    in.finish();
    if (theirs != tag)
      throw Error(EPROTO, {.attempted = fmt::format("wait for {}", socket.peer()),
                           .why = fmt::format("the {} is at '{}', the {} at '{}'", name(socket.role()), tag,
                                              name(other(socket.role())), theirs),
                           .remedy = "Run the same program on both sides"});
  };
  exchange_message(socket, MessageType::barrier, mine.view(), compare, deadline);
}

}  // namespace pollen::net
