#include "session.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "cores.hpp"
#include "pollen/drivers/registry.hpp"
#include "pollen/lcore/advice.hpp"
#include "pollen/net/handshake.hpp"
#include "reporter.hpp"
#include "side.hpp"

namespace pollen::bw {

namespace {

using std::chrono::seconds;

constexpr seconds connect_limit{5};  // the server may be starting
constexpr seconds hello_limit{5};
constexpr std::chrono::hours wait_limit{24 * 365};
constexpr seconds finish_limit{2};

void advise(const Options& options, lcore::Plan plan) {
  if (options.quiet_frequency)
    std::erase_if(plan.advice,
                  [](const lcore::Advice& one) { return one.kind == lcore::Advice::Kind::governor; });
  lcore::enforce(plan.advice, options.lcores.strict);
  for (const lcore::Advice& one : plan.advice) spdlog::warn("{}: {}", one.text, one.fix);
}

// `count` lcores of a plan, from `first` on.
lcore::Plan part_of(const lcore::Plan& plan, std::size_t first, std::size_t count) {
  lcore::Plan part = plan;
  const auto begin = plan.lcores.begin() + static_cast<std::ptrdiff_t>(first);
  part.lcores.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
  return part;
}

constexpr const char* mtu_name = "mtu";
constexpr const char* gid_name = "gid";

struct Link {
  driver::Device& device;
  driver::PortInfo port;
  std::uint32_t mtu_bytes;
};

Link look_at_port(const Options& options, driver::Device& device) {
  Link link{.device = device, .port = device.query_port(options.device_port), .mtu_bytes = 0};
  if (!link.port.active)
    throw Error(ENETDOWN, {.attempted = fmt::format("use port {}", options.device_port),
                           .on = device.info().name,
                           .why = "it is not active",
                           .remedy = "Bring its network interface up, or choose another with -d and -i"});
  link.mtu_bytes = options.mtu_bytes.value_or(link.port.mtu_bytes);
  if (link.mtu_bytes > link.port.mtu_bytes)
    throw Error(EINVAL, {.attempted = fmt::format("use an MTU of {} bytes (-m)", link.mtu_bytes),
                         .on = device.info().name,
                         .why = fmt::format("the port's is {}", link.port.mtu_bytes),
                         .remedy = "Give a smaller one, or raise that of its network interface"});
  return link;
}

net::Hello make_hello(const Options& options, const Link& link) {
  const driver::DeviceInfo& info = link.device.info();
  net::Hello hello{.program = "rdma_bw",
                   .release = std::string(release),
                   .device = fmt::format("{} ({})", info.name, info.description),
                   .parameters = {}};
  for (const auto& [name, value] : options.given)
    hello.parameters.push_back({name, net::Rule::inform, value});
  hello.parameters.push_back({mtu_name, net::Rule::smaller, std::to_string(link.mtu_bytes)});
  hello.parameters.push_back(
      {gid_name, net::Rule::common, net::joined(net::gid_kinds(link.port, options.gid_index))});
  return hello;
}

// What the peer was given: its share of the agreement that is about the test.
Given given_by(const net::Hello& peer) {
  Given given;
  for (const net::Parameter& one : peer.parameters)
    if (one.rule == net::Rule::inform) given[one.name] = one.value;
  return given;
}

SideSetup agree(const Options& options, const Link& link, const net::Agreement& agreement, net::Role role) {
  SideSetup setup{.options = options, .device = link.device, .plan = {}, .test = {}, .role = role};
  const Given theirs = given_by(agreement.peer);
  const bool client = role == net::Role::client;
  setup.test =
      read_parameters(settle(client ? options.given : theirs, client ? theirs : options.given, role));
  setup.mtu_bytes = static_cast<std::uint32_t>(agreement.number(mtu_name));
  const auto kind = net::gid_kind_named(agreement.text(gid_name));
  setup.gid = net::choose_gid(link.port, options.gid_index, kind);
  setup.lid = link.port.lid;
  require_possible(setup.test, link.device, setup.mtu_bytes);
  return setup;
}

void require_lcores(const SideSetup& setup, std::size_t have) {
  if (have == setup.test.lcores) return;
  throw Error(ECONNABORTED,
              {.attempted = "agree with the peer",
               .why = fmt::format("the test runs on {} lcores a side, and the {} has {} to give",
                                  setup.test.lcores, name(setup.role), have),
               .remedy = "Give both sides as many with --lcores"});
}

// From the agreement to the end of the last round.
int run_rounds(const SideSetup& setup, net::Socket& socket, int stop_fd, Reporter& reporter,
               const std::function<bool()>& signalled) {
  const Look look = [&](const Progress& progress) {
    reporter.look(setup, progress);
    return signalled();
  };
  for (const std::uint64_t size : sizes_of(setup)) {
    reporter.round(setup, run_round(setup, size, socket, stop_fd, look));
    if (reporter.interrupted()) break;
  }
  const int code = reporter.end(setup);
  socket.finish(net::Deadline::after(finish_limit));
  return code;
}

RunInfo info_of(const driver::OpenedDevice& opened, const net::Socket& socket, const net::Hello& peer) {
  return {.driver_why = opened.why,
          .peer = socket.peer(),
          .peer_device = peer.device,
          .peer_release = peer.release};
}

net::Greeted greet(net::TcpListener& listener, const net::Hello& hello, int stop_fd) {
  net::Greeter greeter(listener, hello, hello_limit, [](const Error& error) {
    // One that speaks the protocol is the peer that this server is for; anyone else is a stranger.
    const int code = error.code().value();
    if (code == ECONNABORTED || code == EPROTONOSUPPORT) throw error;
    spdlog::warn("{}; still listening", error.what());
  });
  return greeter.next(net::Deadline::after(wait_limit, stop_fd));
}

// The choice of lcores and of the test, of which the peer is told when it fails.
SideSetup agree_and_choose(const Options& options, const Link& link, Cores& cores, net::Socket& socket,
                           const net::Agreement& agreement, net::Role role) {
  return net::or_refuse(socket, [&] {
    SideSetup setup = agree(options, link, agreement, role);
    cores.choose(setup.test.lcores);
    require_lcores(setup, cores.plan().lcores.size());
    setup.plan = cores.plan();
    return setup;
  });
}

int run_one_side(const Options& options, Stop& stop) {
  const net::Role role = options.is_client() ? net::Role::client : net::Role::server;
  std::optional<net::Address> server;
  if (role == net::Role::client) server = net::parse_address(options.server, options.port);
  Reporter reporter(options, Reporter::Voice::loud);
  const driver::OpenedDevice opened =
      driver::open_device(options.driver, options.device, options.driver_options);
  const Link link = look_at_port(options, *opened.device);
  // What can be known to be impossible is refused before anyone is waited for.
  require_possible(read_parameters(options.given), link.device, link.mtu_bytes);
  Cores cores(options.lcores, opened.device->info().numa_node);
  cores.choose(options.lcores.lcores ? options.lcores.lcores->size() : 1);
  advise(options, cores.plan());
  const net::Hello hello = make_hello(options, link);

  net::Greeted greeted = [&]() -> net::Greeted {
    if (server)
      return stop.run([&]() -> net::Greeted {
        net::Socket socket = net::tcp_connect(*server, net::Deadline::after(connect_limit, stop.fd()));
        net::Agreement agreement =
            net::exchange_hello(socket, hello, net::Deadline::after(hello_limit, stop.fd()));
        return {.socket = std::move(socket), .agreement = std::move(agreement)};
      });
    net::TcpListener listener(net::Address{.host = {}, .port = options.port});
    reporter.text().waiting(listener.port());
    return stop.run([&] { return greet(listener, hello, stop.fd()); });
  }();
  const SideSetup setup = agree_and_choose(options, link, cores, greeted.socket, greeted.agreement, role);
  reporter.begin(setup, info_of(opened, greeted.socket, greeted.agreement.peer));
  const int code = run_rounds(setup, greeted.socket, stop.fd(), reporter, [&] { return stop.look() != 0; });
  return code;
}

int run_loopback(const Options& options, Stop& stop) {
  Reporter reporter(options, Reporter::Voice::loud);
  Reporter silent(options, Reporter::Voice::silent);
  const driver::OpenedDevice opened =
      driver::open_device(options.driver, options.device, options.driver_options);
  const Link link = look_at_port(options, *opened.device);
  require_possible(read_parameters(options.given), link.device, link.mtu_bytes);
  Cores cores(options.lcores, opened.device->info().numa_node);
  cores.choose(options.lcores.lcores ? options.lcores.lcores->size() : 2);
  advise(options, cores.plan());
  const std::size_t count = cores.plan().lcores.size();
  const std::size_t half = std::max<std::size_t>(1, count / 2);
  Options sized = options;
  sized.given[parameter::lcores] = std::to_string(half);
  if (count == 1) {
    spdlog::warn("both sides share {}: the figures are of two workers that take turns",
                 lcore::lcores_text(cores.plan().cpus()));
    if (!sized.lcores.idle) sized.lcores.idle = lcore::Idle::sleep;
  }
  const net::Hello hello = make_hello(sized, link);

  net::TcpListener listener(net::Address{.host = "127.0.0.1", .port = 0});
  const net::Address here{.host = "127.0.0.1", .port = listener.port()};
  const auto serve = [&] {
    net::Greeted greeted = greet(listener, hello, stop.fd());
    SideSetup setup = agree(sized, link, greeted.agreement, net::Role::server);
    setup.plan = part_of(cores.plan(), 0, half);
    return run_rounds(setup, greeted.socket, stop.fd(), silent, [&] { return stop.stopped(); });
  };
  auto server = std::async(std::launch::async, serve);
  const auto connect = [&] { return net::tcp_connect(here, net::Deadline::after(connect_limit, stop.fd())); };
  std::optional<Error> failure;
  int code = exit_failed;
  {
    net::Socket socket = connect();
    try {
      const net::Agreement agreement =
          net::exchange_hello(socket, hello, net::Deadline::after(hello_limit, stop.fd()));
      SideSetup setup = agree(sized, link, agreement, net::Role::client);
      setup.plan = part_of(cores.plan(), count - half, half);
      reporter.begin(setup, info_of(opened, socket, agreement.peer));
      code = run_rounds(setup, socket, stop.fd(), reporter, [&] { return stop.look() != 0; });
    } catch (const Error& error) {
      failure = error;
    }
  }
  try {
    server.get();
  } catch (const Error& error) {
    // Whichever side failed first says why; the other only saw it go.
    const int seen = failure ? failure->code().value() : 0;
    if (!failure || seen == ECONNRESET || seen == ECONNABORTED) failure = error;
  }
  if (failure) throw *failure;
  return code;
}

}  // namespace

int run_session(const Options& options, Stop& stop) {
  return options.loopback ? run_loopback(options, stop) : run_one_side(options, stop);
}

}  // namespace pollen::bw
