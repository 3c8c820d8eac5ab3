// The connection manager behind /dev/infiniband/rdma_cm, for librdmacm: connections of QPs between
// processes of this host, agreed on over local sockets.
//
//   cm.cpp            identifiers, events, the thread that reads the sockets
//   cm_commands.cpp   what the program asks for
//
// A channel's descriptor is the slave of a pseudo-terminal: a character device, as librdmacm insists
// on, that becomes readable when there is an event.
// Thread rules: any thread; one lock for all of it.
#pragma once

#include <rdma/rdma_user_cm.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "pollen/drivers/soft/uverbs/cm_wire.hpp"
#include "pollen/drivers/soft/uverbs/fd_table.hpp"

namespace pollen::soft::uverbs {

class Cm;

struct CmEvent {
  rdma_ucm_event_resp event;
  std::uint32_t counted_for;  // the identifier whose program acknowledges it
};

// Each event in it has a byte in the terminal.
struct CmChannel final : FdTarget {
  ~CmChannel() override;
  int program_fd = -1;
  int master_fd = -1;
  void take_marker() noexcept;
  std::deque<CmEvent> events;
};

// Opens a channel for the program; its descriptor, or -1 with errno.
int open_cm_channel() noexcept;
// A command that was written to the channel; what write returns.
ssize_t write_cm_command(int fd, const std::shared_ptr<CmChannel>& channel, const void* data,
                         std::size_t bytes) noexcept;

// Events as librdmacm numbers them; its header and the kernel's can't be had together.
enum CmEventKind : std::uint32_t {
  cm_addr_resolved = 0,
  cm_route_resolved = 2,
  cm_connect_request = 4,
  cm_connect_response = 5,
  cm_rejected = 8,
  cm_established = 9,
  cm_disconnected = 10,
};

enum class CmState : std::uint8_t { idle, listening, requested, asked, replied, connected, over };

struct CmId {
  std::uint32_t id = 0;
  std::uint64_t uid = 0;
  std::uint16_t port_space = 0;
  std::weak_ptr<CmChannel> channel;
  CmState state = CmState::idle;
  int fd = -1;
  bool bound = false;    // to the device
  bool passive = false;  // the peer began; `listener` until its request is there
  std::uint32_t listener = 0;
  sockaddr_in6 from{};
  sockaddr_in6 to{};
  std::uint32_t psn = 0;
  std::uint32_t events_reported = 0;
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  std::uint8_t timeout = 16;  // of the QP, when the program sets none
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry_count = 7;
  CmMessage peer{};  // its request or reply

  bool is_datagram() const noexcept { return port_space == RDMA_PS_UDP || port_space == RDMA_PS_IPOIB; }
};

class Cm {
 public:
  static Cm& get();

  // --- cm_commands.cpp; each throws Error ---
  void command(std::unique_lock<std::mutex>& lock, int fd, const std::shared_ptr<CmChannel>& channel,
               std::uint32_t number, const std::byte* in, std::size_t bytes);
  std::mutex& mutex() noexcept { return mutex_; }

 private:
  Cm();

  CmId& find(std::uint32_t id);
  CmId& make(std::uint16_t port_space, const std::shared_ptr<CmChannel>& channel);
  void post(CmId& id, std::uint32_t kind, std::uint32_t status = 0, const CmMessage* message = nullptr);
  void post_request(CmId& listener, CmId& id);
  void sweep() noexcept;
  void enqueue(CmChannel& channel, const CmEvent& event);
  void watch(CmId& id);
  void close(CmId& id) noexcept;
  void send(CmId& id, CmKind kind, const rdma_ucm_conn_param* param);
  void run() noexcept;
  void on_readable(std::uint32_t id);
  void on_message(CmId& id, const CmMessage& message);
  void on_end(CmId& id);

  void create_id(const std::shared_ptr<CmChannel>& channel, const std::byte* in, std::size_t bytes);
  void destroy_id(const std::byte* in, std::size_t bytes);
  void set_option(const std::byte* in, std::size_t bytes);
  void bind_ip(const std::byte* in, std::size_t bytes);
  void resolve_ip(const std::byte* in, std::size_t bytes);
  void query_route(const std::byte* in, std::size_t bytes);
  void connect(const std::byte* in, std::size_t bytes);
  void listen(const std::byte* in, std::size_t bytes);
  void accept(const std::byte* in, std::size_t bytes);
  void reject(const std::byte* in, std::size_t bytes);
  void disconnect(const std::byte* in, std::size_t bytes);
  void init_qp_attr(const std::byte* in, std::size_t bytes);
  void get_event(std::unique_lock<std::mutex>& lock, int fd, CmChannel& channel, const std::byte* in,
                 std::size_t bytes);
  void migrate(const std::shared_ptr<CmChannel>& to, const std::byte* in, std::size_t bytes);

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::uint32_t, std::unique_ptr<CmId>> ids_;
  std::uint32_t last_id_ = 0;
  int epoll_fd_ = -1;
};

}  // namespace pollen::soft::uverbs
