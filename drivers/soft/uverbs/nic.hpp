// The device as a process sees it: one engine, its registers, and the thread that is the hardware.
//
// The thread looks at the registers, lets the engine take a turn and tells of completions. Commands
// come on the program's threads; both hold the lock meanwhile, and a command goes first. The thread
// sleeps when there is nothing to do: not at all for a moment, then for microseconds, without QPs
// until there is one.
//
// It is made when a program first opens the device, and belongs to that process: a child after a
// fork has none until it opens the device itself.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "pollen/drivers/soft/directory.hpp"
#include "pollen/drivers/soft/engine.hpp"
#include "pollen/drivers/soft/incident.hpp"
#include "pollen/drivers/soft/region_table.hpp"
#include "pollen/drivers/soft/uverbs/objects.hpp"
#include "pollen/drivers/soft/uverbs/uar.hpp"

namespace pollen::soft::uverbs {

class Nic final : public IncidentListener {
 public:
  // This process's; made by the first call. Throws Error.
  static Nic& get();
  // The one that get() made in this process, or null.
  static Nic* existing() noexcept;
  ~Nic() override;

  // Holds the device still for a command.
  class Command {
   public:
    explicit Command(Nic& nic) : nic_(nic) {
      nic_.commands_.fetch_add(1, std::memory_order_relaxed);
      nic_.mutex_.lock();
      nic_.commands_.fetch_sub(1, std::memory_order_relaxed);
    }
    ~Command() { nic_.mutex_.unlock(); }
    Command(const Command&) = delete;
    Command& operator=(const Command&) = delete;

   private:
    Nic& nic_;
  };

  // --- with the lock held ---

  Engine& engine() noexcept { return *engine_; }
  RegionTable& regions() noexcept { return regions_; }
  UarPages& uars() noexcept { return uars_; }
  std::uint32_t device() const noexcept { return directory_.device(); }
  std::uint32_t next_number() noexcept { return ++numbers_; }
  void add(CqObject& cq) { cqs_.push_back(&cq); }
  void remove(CqObject& cq) noexcept;
  void add(QpObject& qp);
  void remove(QpObject& qp) noexcept;
  void add(std::shared_ptr<EventQueue> queue) { queues_.push_back(std::move(queue)); }
  // Completions of a command are told of at once.
  void notify_all();

  void on_incident(SoftQp& qp, QpIncident incident) noexcept override;
  void on_overrun(SoftCq& cq) noexcept override;
  void on_limit(SoftSrq& srq) noexcept override;

 private:
  Nic(std::uint32_t device, const SoftOptions& options);

  void run();
  bool turn();
  void rest(std::uint64_t idle_turns);
  void on_send_doorbell(std::uint32_t page, std::uint32_t qpn) noexcept;
  void on_arm_doorbell(std::uint32_t page, std::uint32_t cqn) noexcept;

  const int pid_;
  Directory directory_;
  RegionTable regions_;
  UarPages uars_;
  std::unique_ptr<Engine> engine_;
  std::vector<CqObject*> cqs_;
  std::vector<CqObject*> armed_;
  std::vector<QpObject*> qps_;
  std::vector<std::weak_ptr<EventQueue>> queues_;
  std::uint32_t numbers_ = 0;
  std::mutex mutex_;
  std::atomic<std::uint32_t> commands_{0};
  std::condition_variable has_qps_;
  std::uint32_t spin_turns_;
  std::uint64_t nap_ns_ = 0;  // the shortest
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace pollen::soft::uverbs
