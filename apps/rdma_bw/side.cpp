#include "side.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "app.hpp"
#include "pollen/net/exchange.hpp"
#include "pollen/worker/runtime.hpp"

namespace pollen::bw {

namespace {

constexpr std::chrono::seconds meeting_limit{30};  // memory may have to be found and cleared
constexpr std::chrono::seconds results_limit{15};
constexpr std::size_t max_results_bytes = std::size_t{64} << 20;
constexpr std::uint64_t tick_ns = 20'000'000;

RoundConfig make_config(const SideSetup& setup, std::uint64_t size) {
  RoundConfig config;
  config.test = setup.test;
  config.activity = setup.activity();
  config.layout = make_layout(setup.test, size, config.activity);
  config.role = setup.role;
  config.signal_every = signal_every(setup.test, size);
  config.mtu_bytes = setup.mtu_bytes;
  config.gid = setup.gid;
  config.lid = setup.lid;
  const double messages = setup.options.limit_is_messages
                              ? setup.options.limit
                              : setup.options.limit / (8 * static_cast<double>(size));
  config.messages_per_s = messages / static_cast<double>(setup.plan.lcores.size());
  config.corrupt_message = setup.options.corrupt_message;
  return config;
}

worker::RuntimeOptions runtime_options(const SideSetup& setup, const RoundConfig& config) {
  worker::RuntimeOptions options;
  const TestParameters& test = setup.test;
  options.worker.device_port = setup.options.device_port;
  options.worker.arena_bytes = arena_bytes(config);
  options.worker.send_cq_entries = test.qps * (config.layout.tx_depth + 2);
  options.worker.recv_cq_entries = std::max(64U, test.qps * config.layout.rx_depth);
  options.worker.idle = setup.options.lcores.idle.value_or(lcore::default_idle(setup.plan));
  options.realtime = setup.options.lcores.realtime;
  options.handle_signals = false;  // the peer has to be told first: control.hpp
  options.lock_lcores = false;     // held from the start of the program on
  options.tick_ns = tick_ns;
  return options;
}

template <Kind kind, bool validate>
struct Run {
  const RoundConfig& config;
  Rendezvous& meeting;
  Shared& shared;
  std::vector<std::unique_ptr<Live>>& live;
  SideOutcome& side;
  Control& control;

  // Says when the last worker has met the others.
  struct App : BwApp<kind, validate> {
    App(Run& run, unsigned index)
        : BwApp<kind, validate>(run.config, run.meeting, run.shared, *run.live[index], run.side, index),
          control(run.control) {}
    void start(worker::Worker& worker) {
      BwApp<kind, validate>::start(worker);
      control.release();
    }
    Control& control;
  };

  worker::RunResult operator()(worker::Runtime& runtime) {
    return runtime.run([this](unsigned index) { return App(*this, index); });
  }
};

template <bool validate>
worker::RunResult run_kind(worker::Runtime& runtime, const RoundConfig& config, Rendezvous& meeting,
                           Shared& shared, std::vector<std::unique_ptr<Live>>& live, SideOutcome& side,
                           Control& control) {
  switch (config.test.op) {
    case Op::send:
      if (config.test.is_ud())
        return Run<Kind::send_ud, validate>{config, meeting, shared, live, side, control}(runtime);
      return Run<Kind::send, validate>{config, meeting, shared, live, side, control}(runtime);
    case Op::write:
      return Run<Kind::write, validate>{config, meeting, shared, live, side, control}(runtime);
    case Op::write_imm:
      return Run<Kind::write_imm, validate>{config, meeting, shared, live, side, control}(runtime);
    case Op::read:
      break;
  }
  return Run<Kind::read, validate>{config, meeting, shared, live, side, control}(runtime);
}

void add_notes(const RoundConfig& config, const worker::RunResult& result, SideOutcome& side) {
  const auto add = [&](std::string note) {
    if (std::ranges::find(side.notes, note) == side.notes.end()) side.notes.push_back(std::move(note));
  };
  const TestParameters& test = config.test;
  if (config.activity.active && config.layout.tx_depth < test.tx_depth)
    add(fmt::format(
        "depth: asked for {}, given {}: with --data_validation each message under way has memory of its own",
        test.tx_depth, config.layout.tx_depth));
  if (config.layout.rx_depth != 0 && config.layout.rx_depth < test.rx_depth)
    add(fmt::format("receives: asked for {}, given {}: with --data_validation each has memory of its own",
                    test.rx_depth, config.layout.rx_depth));
  for (const worker::LcoreResult& lcore : result.lcores)
    for (const std::string& note : lcore.notes) add(note);
}

Progress progress_of(std::uint64_t size, const std::vector<std::unique_ptr<Live>>& live, bool running) {
  Progress progress{.size = size, .running = running};
  for (const auto& one : live) {
    progress.sent += one->sent.get();
    progress.received += one->received.get();
  }
  return progress;
}

SideOutcome run_workers(const SideSetup& setup, const RoundConfig& config, net::Socket& socket, int stop_fd,
                        const Look& look) {
  const auto lcores = static_cast<unsigned>(setup.plan.lcores.size());
  SideOutcome side;
  side.lcores.resize(lcores);
  side.reports.resize(lcores);
  for (unsigned i = 0; i < lcores; ++i) side.lcores[i].lcore = setup.plan.lcores[i].cpu;

  Shared shared;
  std::vector<std::unique_ptr<Live>> live;
  for (unsigned i = 0; i < lcores; ++i) live.push_back(std::make_unique<Live>());
  Rendezvous meeting(socket, lcores, meeting_limit, stop_fd);

  worker::RuntimeOptions options = runtime_options(setup, config);
  worker::Runtime* running = nullptr;
  Control control(socket, shared, live, [&] { running->request_stop(); });
  options.on_tick = [&](const worker::Runtime&) {
    const bool signalled = look(progress_of(config.layout.size, live, control.released()));
    if (signalled && !control.released()) running->request_stop();
    control.tick(signalled);
  };
  lcore::Plan plan = setup.plan;
  plan.advice.clear();  // it was given before the first round
  worker::Runtime runtime(setup.device, std::move(plan), std::move(options));
  running = &runtime;

  try {
    const worker::RunResult result =
        config.test.validate ? run_kind<true>(runtime, config, meeting, shared, live, side, control)
                             : run_kind<false>(runtime, config, meeting, shared, live, side, control);
    add_notes(config, result, side);
  } catch (const Error&) {
    // The peer's end explains a request that failed for it better than the request does.
    if (control.failure()) throw *control.failure();
    throw;
  }
  if (control.failure()) throw *control.failure();
  if (!control.released())
    throw Error(ECANCELED, {.attempted = "begin the test", .why = "the program is stopping"});
  control.part();
  side.interrupted = control.interrupted();
  return side;
}

[[noreturn]] void rethrow_for_peer_gone(const net::Socket& socket, const Error& error) {
  ErrorText text = error.text();
  const char* who = name(net::other(socket.role()));
  text.remedy = fmt::format(
      "The {} ended before the test was over; its own output says why, unless it was killed", who);
  throw Error(error.code().value(), std::move(text));
}

}  // namespace

std::vector<std::uint64_t> sizes_of(const SideSetup& setup) {
  std::vector<std::uint64_t> sizes = setup.test.sizes;
  if (setup.test.is_ud()) std::erase_if(sizes, [&](std::uint64_t size) { return size > setup.mtu_bytes; });
  return sizes;
}

Round run_round(const SideSetup& setup, std::uint64_t size, net::Socket& socket, int stop_fd,
                const Look& look) {
  const RoundConfig config = make_config(setup, size);
  Round round{
      .size = size, .layout = config.layout, .signal_every = config.signal_every, .mine = {}, .theirs = {}};
  try {
    round.mine = run_workers(setup, config, socket, stop_fd, look);
    const auto theirs = net::exchange_bytes(socket, encode(round.mine), max_results_bytes,
                                            net::Deadline::after(results_limit));
    round.theirs = net::or_refuse(socket, [&] { return decode(theirs, setup.plan.lcores.size()); });
  } catch (const Error& error) {
    const int code = error.code().value();
    if (code == ECONNABORTED || code == ECONNRESET) throw;
    if (code == EIO && socket.peer_closed()) rethrow_for_peer_gone(socket, error);
    ErrorText cause = error.text();
    const std::string remedy = std::exchange(cause.remedy, {});
    net::refuse(socket,
                {.why = fmt::format("the {} had to give up: {}", name(setup.role), Error(code, cause).what()),
                 .remedy = remedy});
    throw;
  }
  return round;
}

}  // namespace pollen::bw
