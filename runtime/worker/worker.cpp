#include "pollen/worker/worker.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

namespace pollen::worker {

namespace {

constexpr std::uint64_t look_interval_ns = 100'000;
constexpr std::uint64_t publish_interval_ns = 10'000'000;
constexpr std::uint64_t event_interval_ns = 10'000'000;
constexpr unsigned messages_per_look = 16;
// Of a port that can't wake anyone: short enough to be a poll, long enough to give the core away.
constexpr std::uint64_t unwakeable_sleep_ns = 100'000;
constexpr std::uint64_t draining_sleep_ns = 1'000'000;  // the drain has a limit of its own to keep

memory::ArenaOptions arena_options(const WorkerOptions& options) {
  return {.bytes = options.arena_bytes,
          .node = options.node,
          .name = fmt::format("worker-{}", options.index),
          .largest = options.largest_page,
          .smallest = options.smallest_page};
}

}  // namespace

void* Worker::operator new(std::size_t bytes, std::align_val_t) {
  // Fresh pages, which nobody else's objects share: the kernel takes them from this thread's node.
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

void Worker::operator delete(void* memory, std::size_t bytes, std::align_val_t) noexcept {
  ::munmap(memory, bytes);
}

Worker::Worker(driver::Device& device, const WorkerOptions& options)
    : now_ns_(probe::tsc_scale().to_ns(probe::now_cycles())),
      scale_(probe::tsc_scale()),
      timer_(counters_, options.timing_period),
      preemption_(options.preemption),
      options_(options),
      device_(device),
      arena_(arena_options(options)),
      port_(device.open_port(options.device_port)),
      pd_(device.create_pd()),
      region_(pd_->register_memory(arena_.span(), options.arena_access, {.fd = arena_.fd(), .offset = 0})),
      send_cq_control_(make_cq("send", options.send_cq_entries)),
      recv_cq_control_(make_cq("receive", options.recv_cq_entries)),
      send_cq_(std::make_unique<queue::CompletionQueue>(send_cq_control_->ring())),
      recv_cq_(std::make_unique<queue::CompletionQueue>(recv_cq_control_->ring())),
      mailbox_(options.mailbox_messages) {
  progress_ = port_->progress();
  note("arena: " + arena_.report());
}

Worker::~Worker() {
  while (!qps_.empty()) destroy_qp(*qps_.back());
}

void Worker::note(std::string text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(std::move(text));
}

std::unique_ptr<driver::Cq> Worker::make_cq(const char* which, std::uint32_t entries) {
  auto cq = port_->create_cq(std::clamp(entries, 1U, device_.limits().max_cq_entries));
  const std::uint32_t given = cq->ring().entries;
  if (given < entries)
    note(fmt::format("{} completion queue: asked for {} entries, given {}, the limit of {}", which, entries,
                     given, device_.info().name));
  return cq;
}

Qp& Worker::create_qp(driver::QpConfig config, std::uint32_t signal_every) {
  const driver::Limits& limits = device_.limits();
  const auto cut = [&](std::uint32_t& asked, std::uint32_t limit, const char* what) {
    if (asked <= limit) return;
    note(fmt::format("QP: asked for {} {}, given {}, the limit of {}", asked, what, limit,
                     device_.info().name));
    asked = limit;
  };
  cut(config.send_wrs, limits.max_send_wrs, "send requests");
  cut(config.recv_wrs, limits.max_recv_wrs, "receive requests");
  cut(config.send_sge, limits.max_sge, "send gather entries");
  cut(config.recv_sge, limits.max_sge, "receive scatter entries");
  cut(config.inline_bytes, limits.max_inline_bytes, "inline bytes");

  // Room first: what can throw comes before the QP is attached to the completion queues.
  if (qps_.size() == qps_.capacity()) qps_.reserve(std::max<std::size_t>(16, 2 * qps_.size()));
  dirty_.reserve(qps_.capacity());
  auto qp = std::make_unique<Qp>(port_->create_qp(*pd_, *send_cq_control_, *recv_cq_control_, config),
                                 *send_cq_, *recv_cq_, config.transport, signal_every);
  return *qps_.emplace_back(std::move(qp));
}

bool Worker::destroy_qp(Qp& qp, std::uint64_t timeout_ns) noexcept {
  const auto found = std::find_if(qps_.begin(), qps_.end(),
                                  [&](const std::unique_ptr<Qp>& each) { return each.get() == &qp; });
  if (found == qps_.end()) return false;
  if (qp.dirty_) std::erase(dirty_, &qp);
  gone_wrs_ += qp.sq().posted_total() + qp.rq().posted_total();
  gone_doorbells_ += qp.sq().doorbells();
  gone_bytes_ += qp.sq().bytes_posted();
  // The device must know of all requests to flush them.
  qp.sq().ring_doorbell();
  qp.publish_receives();
  const bool drained = qp.close(progress_, timeout_ns);
  std::swap(*found, qps_.back());
  qps_.pop_back();
  return drained;
}

std::uint64_t Worker::in_flight() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& qp : qps_) sum += qp->sq().outstanding();
  return sum;
}

std::span<const queue::Completion> Worker::take_received() noexcept {
  const auto received = take(*recv_cq_);
  if (received.empty()) return received;
  std::uint64_t bytes = 0;
  for (const queue::Completion& completion : received)
    if (completion.ok()) bytes += completion.byte_len;
  counters_.bytes_received.add(bytes);
  return received;
}

std::span<const queue::Completion> Worker::take_sent() noexcept { return take(*send_cq_); }

void Worker::flush_dirty() noexcept {
  for (Qp* qp : dirty_) {
    qp->dirty_ = false;
    qp->publish_receives();
    qp->sq().ring_doorbell();
  }
  dirty_.clear();
}

unsigned Worker::housekeeping() {
  unsigned work = mailbox_.run(messages_per_look);
  if (now_ns_ >= next_look_ns_) {
    next_look_ns_ = now_ns_ + look_interval_ns;
    if (!fds_.empty()) work += fds_.poll();
  }
  if (now_ns_ >= next_publish_ns_) {
    next_publish_ns_ = now_ns_ + publish_interval_ns;
    publish();
  }
  return work;
}

std::optional<driver::Event> Worker::next_event() {
  if (now_ns_ < next_event_ns_) return std::nullopt;
  std::optional<driver::Event> event = port_->next_event();
  if (!event) next_event_ns_ = now_ns_ + event_interval_ns;
  return event;
}

void Worker::sleep() noexcept {
  if (!dirty_.empty()) return flush_dirty();
  if (recv_cq_->ready() || send_cq_->ready()) return;
  const std::uint64_t begin_cycles = probe::now_cycles();
  const std::uint64_t now = scale_.to_ns(begin_cycles);
  if (timers_.next_ns() <= now) return;
  publish();
  if (!mailbox_.sleep_begin()) {
    turns_ = housekeeping_turns - 1;
    return;
  }
  if (port_->arm()) {
    std::uint64_t limit_ns = std::min(options_.max_sleep_ns, timers_.next_ns() - now);
    if (port_->wake_fd() < 0) limit_ns = std::min(limit_ns, unwakeable_sleep_ns);
    if (stopping()) limit_ns = std::min(limit_ns, draining_sleep_ns);
    const timespec limit{.tv_sec = static_cast<time_t>(limit_ns / 1'000'000'000),
                         .tv_nsec = static_cast<long>(limit_ns % 1'000'000'000)};
    // poll() passes over descriptors below 0.
    std::array<pollfd, 3> wakers{pollfd{.fd = port_->wake_fd(), .events = POLLIN, .revents = 0},
                                 pollfd{.fd = mailbox_.fd(), .events = POLLIN, .revents = 0},
                                 pollfd{.fd = fds_.fd(), .events = POLLIN, .revents = 0}};
    preemption_.sleep_begin();
    ::ppoll(wakers.data(), wakers.size(), &limit, nullptr);
    preemption_.sleep_end();
    counters_.cycles(probe::Phase::idle).add(probe::now_cycles() - begin_cycles);
  }
  port_->disarm();
  mailbox_.sleep_end();
  // The next turn looks at messages and descriptors, whatever their turn is.
  turns_ = housekeeping_turns - 1;
  next_look_ns_ = 0;
}

void Worker::publish() noexcept {
  std::uint64_t wrs = gone_wrs_;
  std::uint64_t doorbells = gone_doorbells_;
  std::uint64_t bytes = gone_bytes_;
  for (const auto& qp : qps_) {
    wrs += qp->sq().posted_total() + qp->rq().posted_total();
    doorbells += qp->sq().doorbells();
    bytes += qp->sq().bytes_posted();
  }
  counters_.wrs.set(wrs);
  counters_.doorbells.set(doorbells);
  counters_.bytes_sent.set(bytes);
}

probe::LcoreReport Worker::report() const {
  return {.lcore = options_.lcore,
          .counters = counters_.snapshot(),
          .preemption = preemption_.report(),
          .hardware = hardware_.read(),
          .hardware_status = hardware_.status()};
}

}  // namespace pollen::worker
