#include "pollen/drivers/soft/uverbs/cm.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "pollen/base/error.hpp"
#include "pollen/drivers/soft/directory.hpp"
#include "pollen/drivers/soft/uverbs/libc.hpp"
#include "pollen/drivers/soft/uverbs/options.hpp"

namespace pollen::soft::uverbs {

namespace {

constexpr std::uint32_t rejected_no_service = 8;  // IBTA, reasons of a REJ
constexpr std::uint32_t rejected_by_consumer = 28;

}  // namespace

Cm& Cm::get() {
  static std::mutex making;
  static Cm* made = nullptr;
  static int made_by = 0;
  const std::lock_guard guard(making);
  // After a fork the parent's thread is not here.
  if (made_by != getpid()) {
    made = new Cm;
    made_by = getpid();
  }
  return *made;
}

Cm::Cm() : epoll_fd_(epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_fd_ < 0) throw Error(errno, {.attempted = "start the connection manager"});
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  std::thread([this] { run(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// --- channels ---------------------------------------------------------------------------------

CmChannel::~CmChannel() {
  if (master_fd >= 0) libc::close(master_fd);
}

int open_cm_channel() noexcept {
  try {
    auto channel = std::make_shared<CmChannel>();
    channel->master_fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    char name[64];
    if (channel->master_fd < 0 || unlockpt(channel->master_fd) != 0 ||
        ptsname_r(channel->master_fd, name, sizeof name) != 0)
      return -1;
    const int fd = libc::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return -1;
    termios raw{};
    tcgetattr(fd, &raw);
    cfmakeraw(&raw);
    tcsetattr(fd, TCSANOW, &raw);
    channel->program_fd = fd;
    if (fd_table::add(fd, channel)) return fd;
    libc::close(fd);
    errno = EMFILE;
  } catch (const std::exception&) {
    errno = ENOMEM;
  }
  return -1;
}

void CmChannel::take_marker() noexcept {
  // It may still be on its way through the terminal.
  pollfd readable{program_fd, POLLIN, 0};
  char marker;
  if (poll(&readable, 1, 1000) == 1) [[maybe_unused]]
    const ssize_t got = read(program_fd, &marker, 1);
}

// Identifiers that went with their channel.
void Cm::sweep() noexcept {
  std::erase_if(ids_, [this](auto& entry) {
    if (!entry.second->channel.expired()) return false;
    close(*entry.second);
    return true;
  });
}

void Cm::enqueue(CmChannel& channel, const CmEvent& event) {
  channel.events.push_back(event);
  const char one = 1;
  libc::write(channel.master_fd, &one, 1);
  arrived_.notify_all();
}

// --- identifiers ------------------------------------------------------------------------------

CmId& Cm::find(std::uint32_t id) {
  const auto found = ids_.find(id);
  if (found == ids_.end())
    throw Error(EINVAL, {.attempted = "find a connection", .why = "there is no such identifier"});
  return *found->second;
}

CmId& Cm::make(std::uint16_t port_space, const std::shared_ptr<CmChannel>& channel) {
  sweep();
  auto id = std::make_unique<CmId>();
  id->id = ++last_id_;
  id->port_space = port_space;
  id->channel = channel;
  if (getrandom(&id->psn, sizeof id->psn, 0) < 0) id->psn = static_cast<std::uint32_t>(getpid()) + id->id;
  id->psn &= psn_mask;
  CmId& made = *id;
  ids_.emplace(made.id, std::move(id));
  return made;
}

void Cm::watch(CmId& id) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = id.id;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, id.fd, &event) != 0)
    throw Error(errno, {.attempted = "watch a connection"});
}

void Cm::close(CmId& id) noexcept {
  if (id.fd >= 0) libc::close(id.fd);
  id.fd = -1;
}

void Cm::send(CmId& id, CmKind kind, const rdma_ucm_conn_param* param) {
  CmMessage message{};
  message.kind = kind;
  message.psn = id.psn;
  message.gid = device_gid(Options::get().device, 1).bytes;
  message.from = id.from;
  message.to = id.to;
  message.datagram = id.is_datagram() ? 1 : 0;
  message.responder_resources = id.responder_resources;
  message.initiator_depth = id.initiator_depth;
  message.retry_count = id.retry_count;
  message.rnr_retry_count = id.rnr_retry_count;
  if (param != nullptr) {
    message.qpn = param->qp_num;
    message.qkey = param->qkey;
    message.srq = param->srq;
    message.data_bytes = param->private_data_len;
    std::memcpy(message.data.data(), param->private_data, param->private_data_len);
  }
  if (id.fd < 0 || ::send(id.fd, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof message)
    throw Error(id.fd < 0 ? ENOTCONN : errno, {.attempted = "tell the peer of a connection"});
}

// --- events -----------------------------------------------------------------------------------

void Cm::post(CmId& id, std::uint32_t kind, std::uint32_t status, const CmMessage* message) {
  const auto channel = id.channel.lock();
  if (channel == nullptr) return;
  CmEvent event{};
  event.counted_for = id.id;
  event.event.uid = id.uid;
  event.event.id = id.id;
  event.event.event = kind;
  event.event.status = status;
  if (message != nullptr && id.is_datagram()) {
    auto& ud = event.event.param.ud;
    ud.qp_num = message->qpn;
    ud.qkey = message->qkey;
    ud.private_data_len = message->data_bytes;
    std::memcpy(ud.private_data, message->data.data(), message->data_bytes);
    std::memcpy(ud.ah_attr.grh.dgid, message->gid.data(), message->gid.size());
    ud.ah_attr.grh.sgid_index = 1;
    ud.ah_attr.grh.hop_limit = 64;
    ud.ah_attr.is_global = 1;
    ud.ah_attr.port_num = 1;
  } else if (message != nullptr) {
    auto& conn = event.event.param.conn;
    conn.qp_num = message->qpn;
    conn.private_data_len = message->data_bytes;
    std::memcpy(conn.private_data, message->data.data(), message->data_bytes);
    // What the peer starts, this side has to answer, and the other way round.
    conn.responder_resources = message->initiator_depth;
    conn.initiator_depth = message->responder_resources;
    conn.retry_count = message->retry_count;
    conn.rnr_retry_count = message->rnr_retry_count;
    conn.srq = message->srq;
  }
  enqueue(*channel, event);
}

void Cm::post_request(CmId& listener, CmId& id) {
  const auto channel = listener.channel.lock();
  if (channel == nullptr) return;
  // As the new identifier's, but the program knows it by the listener so far.
  id.uid = listener.uid;
  post(id, cm_connect_request, 0, &id.peer);
  channel->events.back().counted_for = listener.id;
  id.uid = 0;
}

// --- the thread -------------------------------------------------------------------------------

void Cm::run() noexcept {
  pthread_setname_np(pthread_self(), "softmlx5-cm");
  epoll_event ready[16];
  for (;;) {
    const int count = epoll_wait(epoll_fd_, ready, 16, -1);
    for (int i = 0; i < count; ++i) {
      try {
        const std::lock_guard guard(mutex_);
        on_readable(ready[i].data.u32);
      } catch (const std::exception&) {
        // A peer that went away in the middle of an exchange; its end is seen next.
      }
    }
  }
}

void Cm::on_readable(std::uint32_t number) {
  const auto found = ids_.find(number);
  if (found == ids_.end() || found->second->fd < 0) return;
  CmId& id = *found->second;
  if (id.state == CmState::listening) {
    const int fd = accept4(id.fd, nullptr, nullptr, SOCK_CLOEXEC);
    const auto channel = id.channel.lock();
    if (fd < 0 || channel == nullptr) return;
    CmId& incoming = make(id.port_space, channel);
    incoming.fd = fd;
    incoming.state = CmState::asked;
    incoming.to = id.from;  // until the request says better
    incoming.bound = true;
    incoming.events_reported = 0;
    incoming.passive = true;
    incoming.timeout = id.timeout;
    incoming.listener = id.id;
    return watch(incoming);
  }
  CmMessage message;
  const ssize_t got = recv(id.fd, &message, sizeof message, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got != sizeof message) return on_end(id);
  on_message(id, message);
}

void Cm::on_message(CmId& id, const CmMessage& message) {
  switch (message.kind) {
    case CmKind::request: {
      if (id.state != CmState::asked) return;
      const auto listener = ids_.find(id.listener);
      if (listener == ids_.end() || listener->second->state != CmState::listening) return on_end(id);
      id.peer = message;
      id.from = message.to;
      id.to = message.from;
      id.responder_resources = message.initiator_depth;
      id.initiator_depth = message.responder_resources;
      id.retry_count = message.retry_count;
      id.rnr_retry_count = message.rnr_retry_count;
      id.state = CmState::requested;
      return post_request(*listener->second, id);
    }
    case CmKind::reply:
      if (id.state != CmState::asked) return;
      id.peer = message;
      id.state = CmState::replied;
      id.responder_resources = message.initiator_depth;
      id.initiator_depth = message.responder_resources;
      if (id.is_datagram()) {
        id.state = CmState::connected;
        return post(id, cm_established, 0, &message);
      }
      return post(id, cm_connect_response, 0, &message);
    case CmKind::ready:
      if (id.state != CmState::replied) return;
      id.state = CmState::connected;
      return post(id, cm_established, 0, &message);
    case CmKind::reject:
      id.state = CmState::over;
      close(id);
      return post(id, cm_rejected, message.reason == 0 ? rejected_by_consumer : message.reason, &message);
    case CmKind::disconnect:
      send(id, CmKind::disconnected, nullptr);
      [[fallthrough]];
    case CmKind::disconnected:
      return on_end(id);
  }
}

// The connection is over, by word or because the peer is gone.
void Cm::on_end(CmId& id) {
  const CmState before = std::exchange(id.state, CmState::over);
  close(id);
  if (before == CmState::connected || before == CmState::replied)
    post(id, cm_disconnected);
  else if (before == CmState::asked && id.passive)
    ids_.erase(id.id);  // nobody has heard of it
  else if (before == CmState::asked)
    post(id, cm_rejected, rejected_no_service);
}

}  // namespace pollen::soft::uverbs
