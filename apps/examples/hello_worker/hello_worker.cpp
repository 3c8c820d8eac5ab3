// hello_worker: a worker app, whole. On each lcore a worker sends messages to and fro between two
// queue pairs of its own and reports what that cost. Without a NIC it takes the software one.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <pollen/pollen.hpp>

using namespace pollen;
using worker::Qp;

namespace {

constexpr std::uint32_t message_bytes = 64;

// One for each worker: nothing in it is shared, so nothing in it is locked.
class Hello {
 public:
  explicit Hello(unsigned rounds) : rounds_(rounds) {}

  void start(Worker& worker) {
    text_ = memory_for_message(worker);
    buffer_ = memory_for_message(worker);
    std::memcpy(const_cast<void*>(text_.address), "hello", 5);

    const driver::QpConfig config{.send_wrs = 16, .recv_wrs = 16};
    client_ = &worker.create_qp(config);
    server_ = &worker.create_qp(config);
    connect(worker, *client_, *server_);
    connect(worker, *server_, *client_);
    server_->post_receive(buffer_);
    worker.defer(*server_);
    send(worker, *client_);
  }

  // What came in since the last turn.
  void on_receive(Worker& worker, std::span<const queue::Completion> received) {
    for (const queue::Completion& completion : received) {
      if (!completion.ok()) continue;  // a QP that is being closed gives its buffers back
      Qp& qp = completion.qpn == client_->qpn() ? *client_ : *server_;
      if (&qp == client_ && --rounds_ == 0) return worker.request_stop();
      send(worker, qp);
    }
  }

  unsigned poll(Worker&) { return 0; }  // nothing of its own to do
  void stop(Worker&) {}

 private:
  static queue::Sge memory_for_message(Worker& worker) {
    return {worker.arena().allocate(message_bytes).data(), message_bytes, worker.region().lkey()};
  }

  static void connect(Worker& worker, Qp& qp, const Qp& peer) {
    const driver::PortInfo port = worker.device().query_port();
    const driver::GidEntry gid = net::choose_gid(port);
    qp.connect({},
               {.path = {.remote_gid = gid.gid, .local_gid_index = gid.index},
                .remote_qpn = peer.qpn(),
                .mtu_bytes = port.mtu_bytes},
               {});
  }

  // A receive for the answer, then the message; both reach the device with the turn's doorbell.
  void send(Worker& worker, Qp& qp) {
    const auto timed = worker.sample_post(qp);
    qp.post_receive(buffer_);
    auto burst = qp.send_burst();
    burst.send(text_);
    burst.defer();
    worker.defer(qp);
  }

  unsigned rounds_;
  queue::Sge text_{};
  queue::Sge buffer_{};
  Qp* client_ = nullptr;
  Qp* server_ = nullptr;
};

void run(int argc, char** argv) {
  CLI::App app("Workers that say hello to themselves");
  lcore::LcoreOptions lcores;
  unsigned rounds = 100'000;
  lcore::add_lcore_options(app, lcores);
  app.add_option("-n,--rounds", rounds, "Round trips per worker")->check(CLI::PositiveNumber);
  lcore::parse_command_line(app, lcores, argc, argv);

  const driver::OpenedDevice opened = driver::open_device("auto", "", {.soft_in_process = true});
  const lcore::Plan plan =
      lcore::make_plan(lcore::Machine::read(), {.lcores = lcores.lcores, .taken = lcore::held_lcores()});
  RuntimeOptions options{.realtime = lcores.realtime, .strict = lcores.strict};
  options.worker.arena_bytes = 1 << 20;
  options.worker.idle = lcores.idle.value_or(lcore::default_idle(plan));
  Runtime runtime(*opened.device, plan, options);
  const worker::RunResult result = runtime.run([&](unsigned) { return Hello(rounds); });
  fmt::print("{} round trips of {} bytes on each lcore; {}\n\n{}\n", rounds, message_bytes,
             opened.device->info().description, worker::to_text(result));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
  } catch (const CLI::Error& error) {
    return CLI::App().exit(error);
  } catch (const std::exception& error) {
    fmt::print(stderr, "hello_worker: {}\n", error.what());
    return 1;
  }
}
