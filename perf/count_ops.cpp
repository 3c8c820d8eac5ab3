// Runs an operation a known number of times, for callgrind to count the instructions of its function
// alone: those of N rounds more, divided by their operations, hold nothing of the program's start.
//
//   count_ops --list            a line per operation: name, function (as callgrind knows it), operations per
//   round count_ops OPERATION ROUNDS
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "operations.hpp"
#include "soft_loop.hpp"

namespace {

using namespace perf;

constexpr std::uint32_t sends = ring_blocks / 2;  // of two blocks each

struct Operation {
  const char* name;
  const char* function;
  std::uint32_t per_round;
  void (*run)(std::uint32_t rounds);
};

void require(bool done) {
  if (done) return;
  std::fputs("count_ops: an operation found no room\n", stderr);
  std::exit(1);
}

// A round on a queue that signals 1 in 32, and what the device does for it.
template <class Round>
void on_device(std::uint32_t rounds, Round round) {
  QuietDevice device(burst);
  for (; rounds != 0; --rounds) {
    require(round(device));
    device.drain();
  }
}

const Pages data(message_bytes);
const Sge local{data.bytes, message_bytes, 5};
constexpr Remote remote{0x1000, 6};

template <std::uint32_t per_burst>
void run_send(std::uint32_t rounds) {
  on_device(rounds, [](QuietDevice& device) {
    return in_bursts(sends, per_burst, [&](std::uint32_t n) {
      return post_send(device.sq, std::span<const std::byte, message_bytes>(data.bytes, message_bytes), n);
    });
  });
}

template <std::uint32_t per_burst>
void run_send_of(std::uint32_t rounds) {
  on_device(rounds, [](QuietDevice& device) {
    return in_bursts(sends, per_burst, [&](std::uint32_t n) {
      return post_send_of(device.sq, {data.bytes, message_bytes}, n);
    });
  });
}

template <std::uint32_t per_burst>
void run_write(std::uint32_t rounds) {
  on_device(rounds, [](QuietDevice& device) {
    return in_bursts(ring_blocks, per_burst,
                     [&](std::uint32_t n) { return post_write(device.sq, local, remote, n); });
  });
}

template <std::uint32_t per_burst>
void run_receive(std::uint32_t rounds) {
  on_device(rounds, [](QuietDevice& device) {
    return in_bursts(ring_blocks, per_burst,
                     [&](std::uint32_t n) { return post_receives(device.rq, local, n); });
  });
}

void run_poll(std::uint32_t rounds) {
  QuietDevice device(1);
  Completion out[poll_batch];
  for (; rounds != 0; --rounds) {
    device.post_and_complete_sends();
    require(in_bursts(ring_blocks, poll_batch, [&](std::uint32_t n) { return poll(device.cq, out) == n; }));
  }
}

void run_poll_receives(std::uint32_t rounds) {
  QuietDevice device(1);
  Completion out[poll_batch];
  for (; rounds != 0; --rounds) {
    device.post_and_complete_receives();
    require(in_bursts(ring_blocks, poll_batch, [&](std::uint32_t n) { return poll(device.cq, out) == n; }));
  }
}

void run_poll_empty(std::uint32_t rounds) {
  QuietDevice device(1);
  Completion out[poll_batch];
  for (; rounds != 0; --rounds) require(poll(device.cq, out) == 0);
}

template <std::uint32_t per_burst>
void run_bare_send(std::uint32_t rounds) {
  BareQueue bare;
  for (rounds *= sends / per_burst; rounds != 0; --rounds)
    post_bare_send(bare.ring, bare.data.bytes, per_burst);
}

template <std::uint32_t per_burst>
void run_bare_write(std::uint32_t rounds) {
  BareQueue bare;
  for (rounds *= ring_blocks / per_burst; rounds != 0; --rounds)
    post_bare_write(bare.ring, local, remote, per_burst);
}

void run_soft(std::uint32_t rounds) {
  SoftLoop loop;
  for (; rounds != 0; --rounds) loop.carry_sends(burst);
}

constexpr Operation operations[] = {
    {"post.send64.x1", "perf::post_send(*", sends, run_send<1>},
    {"post.send64.x32", "perf::post_send(*", sends, run_send<burst>},
    {"post.send64dyn.x1", "perf::post_send_of(*", sends, run_send_of<1>},
    {"post.send64dyn.x32", "perf::post_send_of(*", sends, run_send_of<burst>},
    {"post.write.x1", "perf::post_write(*", ring_blocks, run_write<1>},
    {"post.write.x32", "perf::post_write(*", ring_blocks, run_write<burst>},
    {"post.recv.x1", "perf::post_receives(*", ring_blocks, run_receive<1>},
    {"post.recv.x32", "perf::post_receives(*", ring_blocks, run_receive<burst>},
    {"poll.x16", "perf::poll(*", ring_blocks, run_poll},
    {"poll.recv.x16", "perf::poll(*", ring_blocks, run_poll_receives},
    {"poll.empty", "perf::poll(*", 1, run_poll_empty},
    {"bare.send64.x1", "perf::post_bare_send(*", sends, run_bare_send<1>},
    {"bare.send64.x32", "perf::post_bare_send(*", sends, run_bare_send<burst>},
    {"bare.write.x1", "perf::post_bare_write(*", ring_blocks, run_bare_write<1>},
    {"bare.write.x32", "perf::post_bare_write(*", ring_blocks, run_bare_write<burst>},
    {"soft.wqe", "perf::SoftLoop::carry_sends(*", burst, run_soft},
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--list") {
    for (const Operation& operation : operations)
      std::printf("%s\t%s\t%u\n", operation.name, operation.function, operation.per_round);
    return 0;
  }
  for (const Operation& operation : operations)
    if (name == operation.name && argc == 3) {
      const long rounds = std::strtol(argv[2], nullptr, 10);
      if (rounds < 1 || rounds > 1'000'000) break;
      operation.run(static_cast<std::uint32_t>(rounds));
      return 0;
    }
  std::fputs("count_ops --list, or count_ops OPERATION ROUNDS, of which there are 1 to 1000000\n", stderr);
  return 1;
}
