#include "pollen/drivers/soft/uverbs/nic.hpp"

#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "pollen/base/error.hpp"
#include "pollen/drivers/soft/uverbs/options.hpp"

namespace pollen::soft::uverbs {

namespace {

std::mutex making;
Nic* the_nic = nullptr;
int made_by = 0;

// The kernel's struct sched_attr, which the C library has no name for.
struct SchedulingAttributes {
  std::uint32_t size;
  std::uint32_t policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime_ns;
  std::uint64_t deadline_ns;
  std::uint64_t period_ns;
};

// A thread that runs for microseconds at a time and then sleeps asks for short slices: when it
// wakes, those that compute go after it. Nobody needs a privilege for that; a kernel before 6.12
// ignores it. Under a program with real-time priority it goes before the program.
void go_first() noexcept {
  SchedulingAttributes attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  attributes.size = sizeof attributes;
  if (attributes.policy == SCHED_FIFO || attributes.policy == SCHED_RR)
    attributes.priority = std::min(attributes.priority + 1, 99U);
  else
    attributes.runtime_ns = 100'000;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

void nap(std::uint64_t ns) noexcept {
  const timespec time{0, static_cast<long>(ns)};
  nanosleep(&time, nullptr);
}

// The shortest nap of this thread, from what one costs it.
std::uint64_t measure_nap() noexcept {
  const auto used_ns = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
  };
  constexpr std::uint64_t naps = 8;
  const std::uint64_t before = used_ns();
  for (std::uint64_t i = 0; i < naps; ++i) nap(1'000);
  const std::uint64_t cost_ns = (used_ns() - before) / naps;
  return std::clamp<std::uint64_t>(cost_ns * 5, 5'000, 200'000);
}

void end_nic() {
  const std::lock_guard guard(making);
  if (the_nic == nullptr || made_by != getpid()) return;
  delete std::exchange(the_nic, nullptr);
}

}  // namespace

Nic& Nic::get() {
  const std::lock_guard guard(making);
  // After a fork the parent's is not usable here, and not ours to end.
  if (the_nic == nullptr || made_by != getpid()) {
    const Options& options = Options::get();
    the_nic = new Nic(options.device, options.soft);
    if (made_by == 0) std::atexit(end_nic);
    made_by = getpid();
  }
  return *the_nic;
}

Nic* Nic::existing() noexcept {
  const std::lock_guard guard(making);
  return made_by == getpid() ? the_nic : nullptr;
}

Nic::Nic(std::uint32_t device, const SoftOptions& options) : pid_(getpid()), directory_(device, options) {
  std::shared_ptr<PcapWriter> capture;
  if (!options.pcap_path.empty()) capture = std::make_shared<PcapWriter>(options.pcap_path);
  engine_ = std::make_unique<Engine>(directory_, regions_, std::make_unique<Tap>(options.faults, capture),
                                     options.copy_payloads);
  engine_->set_listener(this);
  // Where the program and its peer have cores of their own it pays to watch for longer.
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  spin_turns_ = Options::get().spin_turns.value_or(cores >= 4 ? 2000 : 20);

  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Nic::~Nic() {
  {
    const Command hold(*this);
    stop_ = true;
  }
  has_qps_.notify_all();
  thread_.join();
}

// --- queues -----------------------------------------------------------------------------------

void Nic::remove(CqObject& cq) noexcept {
  std::erase(cqs_, &cq);
  std::erase(armed_, &cq);
}

void Nic::add(QpObject& qp) {
  qps_.push_back(&qp);
  has_qps_.notify_one();
}

void Nic::remove(QpObject& qp) noexcept { std::erase(qps_, &qp); }

void Nic::on_send_doorbell(std::uint32_t page, std::uint32_t qpn) noexcept {
  auto* rung = static_cast<QpObject*>(engine_->find(qpn));
  if (rung != nullptr && rung->uar_page == page) rung->take_doorbell();
  // Another QP of the page may have rung in between, and been overwritten.
  for (QpObject* qp : qps_)
    if (qp != rung && qp->uar_page == page && qp->has_posted()) qp->take_doorbell();
}

void Nic::on_arm_doorbell(std::uint32_t page, std::uint32_t cqn) noexcept {
  for (CqObject* cq : cqs_) {
    if (cq->uar_page != page || (cq->number != cqn && !cq->arm_changed())) continue;
    cq->take_arm();
    if (cq->armed && std::find(armed_.begin(), armed_.end(), cq) == armed_.end()) armed_.push_back(cq);
  }
}

void Nic::notify_all() {
  for (std::size_t i = 0; i < armed_.size();) {
    armed_[i]->notify();
    if (armed_[i]->armed) {
      ++i;
      continue;
    }
    armed_[i] = armed_.back();
    armed_.pop_back();
  }
}

// --- incidents --------------------------------------------------------------------------------

void Nic::on_incident(SoftQp& soft_qp, QpIncident incident) noexcept {
  auto& qp = static_cast<QpObject&>(soft_qp);
  switch (incident) {
    case QpIncident::request_refused:
      return qp.async.async(IBV_EVENT_QP_REQ_ERR);
    case QpIncident::access_refused:
      return qp.async.async(IBV_EVENT_QP_ACCESS_ERR);
    case QpIncident::broken:
      return qp.async.async(IBV_EVENT_QP_FATAL);
    case QpIncident::established:
      return qp.async.async(IBV_EVENT_COMM_EST);
    case QpIncident::last_buffer:
      return qp.async.async(IBV_EVENT_QP_LAST_WQE_REACHED);
  }
}

void Nic::on_overrun(SoftCq& soft_cq) noexcept {
  auto& cq = static_cast<CqObject&>(soft_cq);
  if (cq.overrun_told) return;
  cq.overrun_told = true;
  cq.async.async(IBV_EVENT_CQ_ERR);
}

void Nic::on_limit(SoftSrq& srq) noexcept {
  static_cast<SrqObject&>(srq).async.async(IBV_EVENT_SRQ_LIMIT_REACHED);
}

// --- the thread -------------------------------------------------------------------------------

bool Nic::turn() {
  const bool rung = uars_.poll([this](std::uint32_t page, std::uint32_t qpn) { on_send_doorbell(page, qpn); },
                               [this](std::uint32_t page, std::uint32_t cqn) { on_arm_doorbell(page, cqn); });
  const bool busy = engine_->progress();
  while (engine_->next_event()) {
  }
  if (!armed_.empty()) notify_all();
  return rung || busy;
}

void Nic::run() {
  pthread_setname_np(pthread_self(), "softmlx5");
  prctl(PR_SET_TIMERSLACK, 1UL);
  go_first();
  nap_ns_ = measure_nap();
  std::uint64_t idle_turns = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    while (commands_.load(std::memory_order_relaxed) != 0) sched_yield();
    bool busy;
    {
      std::unique_lock lock(mutex_);
      if (qps_.empty() && armed_.empty()) {
        has_qps_.wait_for(lock, std::chrono::milliseconds(50), [this] { return !qps_.empty() || stop_; });
        if (stop_) return;
      }
      busy = turn();
    }
    idle_turns = busy ? 0 : idle_turns + 1;
    if (!busy) rest(idle_turns);
  }
}

// Programs poll; on a machine with few cores this thread must not keep them, or its peer's, off. A
// nap costs processor time, in a virtual machine a lot: the shortest one is a multiple of that, so
// that the thread stays below its share and is let in at once when it wakes.
void Nic::rest(std::uint64_t idle_turns) {
  if (idle_turns <= spin_turns_) {
    __builtin_ia32_pause();
    return;
  }
  const std::uint64_t naps = idle_turns - spin_turns_;
  nap(nap_ns_ * (naps < 1'000 ? 1 : naps < 4'000 ? 4 : 20));
  if (naps % 1024 == 0) {
    const std::lock_guard guard(mutex_);
    for (const auto& queue : queues_)
      if (const auto alive = queue.lock()) alive->retry();
    std::erase_if(queues_, [](const auto& queue) { return queue.expired(); });
  }
}

}  // namespace pollen::soft::uverbs
