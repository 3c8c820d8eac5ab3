#include "rendezvous.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>

#include "pollen/base/error.hpp"

namespace pollen::bw {

void Rendezvous::meet(const worker::Worker& worker, const std::function<void()>& last) {
  std::unique_lock lock(mutex_);
  const unsigned meeting = meeting_;
  if (++arrived_ == workers_) {
    arrived_ = 0;
    try {
      last();
    } catch (...) {
      failure_ = std::current_exception();
    }
    ++meeting_;
    all_here_.notify_all();
  }
  // Another worker may have failed on its way here; then this one is told to stop.
  while (meeting_ == meeting && !worker.stopping()) all_here_.wait_for(lock, std::chrono::milliseconds(10));
  if (failure_) std::rethrow_exception(failure_);
  if (meeting_ == meeting)
    throw Error(ECANCELED, {.attempted = "begin the test", .why = "the program is stopping"});
}

std::vector<net::QpEndpoint> Rendezvous::exchange(const worker::Worker& worker,
                                                  std::vector<net::QpEndpoint> mine) {
  const std::size_t count = mine.size();
  {
    const std::lock_guard lock(mutex_);
    mine_[worker.index()] = std::move(mine);
  }
  meet(worker, [&] {
    std::vector<net::QpEndpoint> all;
    for (const auto& of_worker : mine_) all.insert(all.end(), of_worker.begin(), of_worker.end());
    theirs_ = net::exchange_endpoints(socket_, all, deadline());
    net::or_refuse(socket_, [&] {
      if (theirs_.size() != all.size())
        throw Error(ECONNABORTED,
                    {.attempted = "agree with the peer",
                     .why = fmt::format("the {} has {} QPs, the {} {}", name(socket_.role()), all.size(),
                                        name(other(socket_.role())), theirs_.size()),
                     .remedy = "Give both sides the same --lcores and -q"});
      for (std::size_t i = 0; i < all.size(); ++i) net::check_gid_types(all[i], theirs_[i]);
    });
  });
  const std::lock_guard lock(mutex_);
  const auto first = theirs_.begin() + static_cast<std::ptrdiff_t>(worker.index() * count);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

std::uint64_t Rendezvous::ready(const worker::Worker& worker) {
  meet(worker, [&] {
    net::barrier(socket_, "ready", deadline());
    begin_ns_ = worker.clock_ns();
  });
  const std::lock_guard lock(mutex_);
  return begin_ns_;
}

}  // namespace pollen::bw
