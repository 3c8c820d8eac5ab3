#include "pollen/net/hello.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>
#include <set>

#include "pollen/net/exchange.hpp"
#include "pollen/net/wire.hpp"

namespace pollen::net {

namespace {

std::optional<std::uint64_t> number_in(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string_view> list_in(std::string_view text) {
  std::vector<std::string_view> items;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    items.push_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return items;
}

const Parameter* find(const std::vector<Parameter>& parameters, std::string_view name) {
  const auto at = std::ranges::find(parameters, name, &Parameter::name);
  return at == parameters.end() ? nullptr : &*at;
}

// The value that holds for both, or nothing where there is none.
std::optional<std::string> settle_one(Rule rule, const std::string& client, const std::string& server) {
  if (rule == Rule::equal) return client == server ? std::optional(client) : std::nullopt;
  if (rule == Rule::common) {
    const auto offered = list_in(server);
    for (const std::string_view item : list_in(client))
      if (std::ranges::find(offered, item) != offered.end()) return std::string(item);
    return std::nullopt;
  }
  const auto a = number_in(client);
  const auto b = number_in(server);
  if (!a || !b) return std::nullopt;
  return std::to_string(rule == Rule::smaller ? std::min(*a, *b) : std::max(*a, *b));
}

std::string described(const Parameter* parameter) {
  if (parameter == nullptr) return "has none";
  return fmt::format("has {}", parameter->value.empty() ? "an empty one" : parameter->value);
}

class Settling {
 public:
  Settling(const Hello& client, const Hello& server, Role role)
      : client_(client), server_(server), role_(role) {}

  Agreement result() {
    if (client_.program != server_.program)
      fail(fmt::format("the client is {}, the server {}", client_.program, server_.program),
           "Run the same program on both sides");
    for (const Parameter& parameter : client_.parameters)
      add(&parameter, find(server_.parameters, parameter.name));
    for (const Parameter& parameter : server_.parameters)
      if (find(client_.parameters, parameter.name) == nullptr) add(nullptr, &parameter);
    if (!conflicts_.empty())
      fail(fmt::format("{}", fmt::join(conflicts_, "; ")), "Give both sides the same options");
    return {.peer = role_ == Role::client ? server_ : client_, .settled = std::move(settled_)};
  }

 private:
  [[noreturn]] static void fail(std::string why, std::string remedy) {
    throw Error(ECONNABORTED,
                {.attempted = "agree with the peer", .why = std::move(why), .remedy = std::move(remedy)});
  }

  void add(const Parameter* client, const Parameter* server) {
    const Parameter& known = client != nullptr ? *client : *server;
    const bool both = client != nullptr && server != nullptr;
    if (both && client->rule != server->rule) {
      conflicts_.push_back(fmt::format("{} is settled by rule {} on the client and {} on the server",
                                       known.name, static_cast<unsigned>(client->rule),
                                       static_cast<unsigned>(server->rule)));
    } else if (known.rule == Rule::inform) {
      const Parameter* theirs = role_ == Role::client ? server : client;
      if (theirs != nullptr) settled_.push_back(*theirs);
    } else if (const auto value =
                   both ? settle_one(known.rule, client->value, server->value) : std::nullopt) {
      settled_.push_back({.name = known.name, .rule = known.rule, .value = *value});
    } else {
      conflicts_.push_back(
          fmt::format("{}: the client {}, the server {}", known.name, described(client), described(server)));
    }
  }

  const Hello& client_;
  const Hello& server_;
  Role role_;
  std::vector<Parameter> settled_;
  std::vector<std::string> conflicts_;
};

}  // namespace

std::vector<std::byte> encode_hello(const Hello& hello) {
  Writer out;
  out.text(hello.program, max_name_bytes, "the program's name");
  out.text(hello.release, max_name_bytes, "the release");
  out.text(hello.device, max_value_bytes, "the device");
  if (hello.parameters.size() > max_parameters)
    throw Error(EMSGSIZE, {.attempted = fmt::format("send {} parameters", hello.parameters.size()),
                           .why = fmt::format("the limit is {}", max_parameters)});
  out.u16(static_cast<std::uint16_t>(hello.parameters.size()));
  for (const Parameter& parameter : hello.parameters) {
    out.text(parameter.name, max_name_bytes, "a parameter's name");
    out.u8(static_cast<std::uint8_t>(parameter.rule));
    out.text(parameter.value, max_value_bytes, parameter.name);
  }
  return out.take();
}

Hello decode_hello(std::span<const std::byte> body) {
  Reader in(body, "the hello message");
  Hello hello;
  hello.program = in.text(max_name_bytes, "the program's name");
  hello.release = in.text(max_name_bytes, "the release");
  hello.device = in.text(max_value_bytes, "the device");
  const std::size_t count = in.u16("the number of parameters");
  if (count > max_parameters)
    in.reject("the number of parameters", fmt::format("it says {}, the limit is {}", count, max_parameters));
  std::set<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    Parameter& parameter = hello.parameters.emplace_back();
    parameter.name = in.text(max_name_bytes, "a parameter's name");
    const std::uint8_t rule = in.u8("a parameter's rule");
    if (rule > static_cast<std::uint8_t>(Rule::common)) in.reject(parameter.name, "its rule is unknown");
    parameter.rule = static_cast<Rule>(rule);
    parameter.value = in.text(max_value_bytes, parameter.name);
    if (!names.insert(parameter.name).second) in.reject(parameter.name, "it is there twice");
  }
  in.finish();
  return hello;
}

const std::string& Agreement::text(std::string_view name) const {
  if (const Parameter* parameter = find(settled, name)) return parameter->value;
  throw Error(EINVAL, {.attempted = fmt::format("find the parameter {}", name), .why = "the peer sent none"});
}

std::uint64_t Agreement::number(std::string_view name) const {
  const std::string& value = text(name);
  if (const auto number = number_in(value)) return *number;
  throw Error(EINVAL, {.attempted = fmt::format("read the parameter {}", name),
                       .why = fmt::format("the peer sent '{}', which is not a number", value)});
}

Agreement settle(const Hello& client, const Hello& server, Role role) {
  return Settling(client, server, role).result();
}

Agreement exchange_hello(Socket& socket, const Hello& mine, const Deadline& deadline) {
  Agreement agreement;
  const Judge judge = [&](std::span<const std::byte> body) {
    const Hello theirs = decode_hello(body);
    try {
      const bool is_client = socket.role() == Role::client;
      agreement = settle(is_client ? mine : theirs, is_client ? theirs : mine, socket.role());
    } catch (const Error& error) {
      throw refused(socket, {.why = error.text().why, .remedy = error.text().remedy});
    }
  };
  exchange_message(socket, MessageType::hello, encode_hello(mine), judge, deadline);
  return agreement;
}

}  // namespace pollen::net
