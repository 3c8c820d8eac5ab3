// A queue pair: an ibv_qp behind rings in mlx5's format. The data path is in sender.hpp and
// receiver.hpp; this is what creates, connects and ends them. It belongs to its port's thread.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "pollen/drivers/driver.hpp"
#include "pollen/drivers/verbs/handles.hpp"
#include "pollen/drivers/verbs/receiver.hpp"
#include "pollen/drivers/verbs/sender.hpp"

namespace pollen::verbs {

class Context;
class VerbsPort;

class VerbsQp final : public driver::Qp {
 public:
  VerbsQp(VerbsPort& port, PdHandle pd, VerbsCq& send_cq, VerbsCq& recv_cq, const driver::QpConfig& config);
  ~VerbsQp() override;
  VerbsQp(const VerbsQp&) = delete;
  VerbsQp& operator=(const VerbsQp&) = delete;

  void to_init(const driver::InitConfig& config) override;
  void to_rtr(const driver::RtrConfig& config) override;
  void to_rts(const driver::RtsConfig& config) override;
  void to_error() override;
  void to_reset() override;
  driver::QpState state() const override;

  // The data path's.
  void doorbell() noexcept;
  bool advance() noexcept;
  void complete(const ibv_wc& completion) noexcept;
  // The whole QP failed, whoever said so.
  void fail() noexcept;
  bool uses(const VerbsCq& cq) const noexcept { return &send_cq_ == &cq || &recv_cq_ == &cq; }
  VerbsPort& port() noexcept { return port_; }

 private:
  struct alignas(queue::block_bytes) Block {
    std::byte bytes[queue::block_bytes];
  };

  ibv_qp_cap create(const driver::QpConfig& config);
  void allocate(const driver::QpConfig& config);
  void require(bool holds, std::string why, const char* remedy) const;
  const Context& context() const noexcept;
  std::uint64_t tag(bool receive) const noexcept;

  VerbsPort& port_;
  PdHandle pd_;
  VerbsCq& send_cq_;
  VerbsCq& recv_cq_;
  driver::Transport transport_;
  std::uint32_t slot_;
  std::uint8_t life_ = 0;  // counts resets: completions of an earlier life are not of this one
  std::vector<Block> send_memory_;
  std::vector<Block> recv_memory_;
  std::uint32_t records_[2] = {};
  QpHandle handle_;
  std::optional<Sender> sender_;
  std::optional<Receiver> receiver_;
};

// The parts of a wr_id: slot:32 life:8 receive:1 zero:7 index:16.
inline constexpr std::uint64_t tag_receive = 1U << 23;
inline std::uint32_t slot_of(std::uint64_t wr_id) noexcept { return static_cast<std::uint32_t>(wr_id >> 32); }
inline std::uint8_t life_of(std::uint64_t wr_id) noexcept { return static_cast<std::uint8_t>(wr_id >> 24); }

}  // namespace pollen::verbs
