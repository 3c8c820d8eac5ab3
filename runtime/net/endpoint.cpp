#include "pollen/net/endpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <limits>

#include "pollen/net/exchange.hpp"
#include "pollen/net/wire.hpp"

namespace pollen::net {

namespace {

constexpr std::uint32_t max_24_bits = 0xffffff;
constexpr std::uint8_t max_rnr_timer = 31;
constexpr std::size_t padding_bytes = 5;

bool is_mtu(std::uint32_t bytes) { return bytes >= 256 && bytes <= 4096 && std::has_single_bit(bytes); }

// What makes no sense in an endpoint, or an empty text.
std::string flaw(const QpEndpoint& endpoint) {
  if (endpoint.qpn > max_24_bits) return fmt::format("QP number {:#x} has more than 24 bits", endpoint.qpn);
  if (endpoint.psn > max_24_bits) return fmt::format("PSN {:#x} has more than 24 bits", endpoint.psn);
  if (endpoint.gid_type > driver::GidType::roce_v2) return "the GID type is unknown";
  if (endpoint.transport > driver::Transport::ud) return "the transport is unknown";
  if (!is_mtu(endpoint.mtu_bytes))
    return fmt::format("{} is no MTU: 256, 512, 1024, 2048 or 4096", endpoint.mtu_bytes);
  if (endpoint.bytes > std::numeric_limits<std::uint64_t>::max() - endpoint.address)
    return "its memory reaches beyond the address space";
  if (endpoint.min_rnr_timer > max_rnr_timer)
    return fmt::format("RNR timer {} is above 31", endpoint.min_rnr_timer);
  return {};
}

void encode_one(Writer& out, const QpEndpoint& endpoint) {
  if (std::string why = flaw(endpoint); !why.empty())
    throw Error(EINVAL, {.attempted = "describe a QP to the peer", .why = std::move(why)});
  out.u32(endpoint.qpn);
  out.u32(endpoint.psn);
  out.bytes(std::as_bytes(std::span(endpoint.gid.bytes)));
  out.u64(endpoint.address);
  out.u64(endpoint.bytes);
  out.u32(endpoint.rkey);
  out.u32(endpoint.qkey);
  out.u32(endpoint.mtu_bytes);
  out.u16(endpoint.lid);
  out.u8(static_cast<std::uint8_t>(endpoint.gid_type));
  out.u8(static_cast<std::uint8_t>(endpoint.transport));
  out.u8(endpoint.reads_in);
  out.u8(endpoint.reads_out);
  out.u8(endpoint.min_rnr_timer);
  for (std::size_t i = 0; i < padding_bytes; ++i) out.u8(0);
}

QpEndpoint decode_one(Reader& in) {
  QpEndpoint endpoint;
  endpoint.qpn = in.u32("qpn");
  endpoint.psn = in.u32("psn");
  std::ranges::copy(in.bytes(endpoint.gid.bytes.size(), "gid"),
                    std::as_writable_bytes(std::span(endpoint.gid.bytes)).begin());
  endpoint.address = in.u64("address");
  endpoint.bytes = in.u64("bytes");
  endpoint.rkey = in.u32("rkey");
  endpoint.qkey = in.u32("qkey");
  endpoint.mtu_bytes = in.u32("mtu_bytes");
  endpoint.lid = in.u16("lid");
  endpoint.gid_type = static_cast<driver::GidType>(in.u8("gid_type"));
  endpoint.transport = static_cast<driver::Transport>(in.u8("transport"));
  endpoint.reads_in = in.u8("reads_in");
  endpoint.reads_out = in.u8("reads_out");
  endpoint.min_rnr_timer = in.u8("min_rnr_timer");
  const auto padding = in.bytes(padding_bytes, "the padding");
  if (std::ranges::any_of(padding, [](std::byte b) { return b != std::byte{0}; }))
    in.reject("the padding", "it is not zero");
  if (const std::string why = flaw(endpoint); !why.empty()) in.reject("a QP", why);
  return endpoint;
}

}  // namespace

std::vector<std::byte> encode_endpoints(std::span<const QpEndpoint> endpoints) {
  Writer out;
  for (const QpEndpoint& endpoint : endpoints) encode_one(out, endpoint);
  return out.take();
}

std::vector<QpEndpoint> decode_endpoints(std::span<const std::byte> bytes) {
  Reader in(bytes, "the peer's endpoints");
  std::vector<QpEndpoint> endpoints;
  while (!in.rest().empty()) endpoints.push_back(decode_one(in));
  return endpoints;
}

std::vector<QpEndpoint> exchange_endpoints(Socket& socket, std::span<const QpEndpoint> mine,
                                           const Deadline& deadline) {
  const auto theirs = exchange_bytes(socket, encode_endpoints(mine), max_endpoints * endpoint_bytes, deadline,
                                     MessageType::endpoints);
  return or_refuse(socket, [&] { return decode_endpoints(theirs); });
}

std::uint32_t negotiate_mtu(std::uint32_t mine_bytes, std::uint32_t theirs_bytes) {
  for (const std::uint32_t bytes : {mine_bytes, theirs_bytes})
    if (!is_mtu(bytes))
      throw Error(EINVAL, {.attempted = "agree on an MTU",
                           .why = fmt::format("{} is none: 256, 512, 1024, 2048 or 4096", bytes)});
  return std::min(mine_bytes, theirs_bytes);
}

void check_gid_types(const QpEndpoint& mine, const QpEndpoint& theirs) {
  if (mine.gid_type == theirs.gid_type) return;
  throw Error(EPROTOTYPE,
              {.attempted = "connect to the peer's QP",
               .why = fmt::format("the GID here ({}) is {}, the peer's ({}) is {}",
                                  driver::to_string(mine.gid), driver::name(mine.gid_type),
                                  driver::to_string(theirs.gid), driver::name(theirs.gid_type)),
               .remedy = "Choose GIDs of one type on both sides (-x), or none: then they are matched"});
}

}  // namespace pollen::net
