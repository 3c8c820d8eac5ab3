// Completion channels, completion queues, asynchronous events.
#include <rdma/mlx5-abi.h>

#include <bit>
#include <cerrno>

#include "pollen/drivers/soft/uverbs/context.hpp"
#include "pollen/drivers/soft/uverbs/device_facts.hpp"

namespace pollen::soft::uverbs {

namespace {

int add_queue(Nic& nic, std::size_t event_bytes) {
  auto queue = std::make_shared<EventQueue>(event_bytes);
  const int fd = queue->program_fd();
  nic.add(queue);
  if (!fd_table::add(fd, std::make_shared<Channel>(std::move(queue))))
    refuse(EMFILE, "make an event channel", "the process has too many open files");
  return fd;
}

std::shared_ptr<EventQueue> queue_of(int fd) {
  const auto channel = fd_table::find_as<Channel>(fd);
  return channel == nullptr ? nullptr : channel->queue;
}

void check_cqes(std::uint64_t address, std::uint32_t entries, const char* command) {
  if (address == 0 || address % queue::cqe_bytes != 0 || !std::has_single_bit(entries) ||
      entries > facts::max_cqes)
    refuse(EINVAL, command, "its memory or its size makes no sense");
}

}  // namespace

void Context::alloc_async_events(Command& command) {
  const int fd = add_queue(nic(), sizeof(ib_uverbs_async_event_desc));
  command.out_number(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, static_cast<std::uint64_t>(fd));
}

void Context::create_comp_channel(Command& command) {
  const int fd = add_queue(nic(), sizeof(ib_uverbs_comp_event_desc));
  command.out<std::uint32_t>(UVERBS_ATTR_CORE_OUT, static_cast<std::uint32_t>(fd));
}

void Context::create_cq(Command& command) {
  const auto asked = command.in<mlx5_ib_create_cq>(UVERBS_ATTR_UHW_IN);
  const auto cqe = command.in<std::uint32_t>(UVERBS_ATTR_CREATE_CQ_CQE);
  const auto flags = command.in<std::uint32_t>(UVERBS_ATTR_CREATE_CQ_FLAGS);
  check_cqes(asked.buf_addr, cqe + 1, "create a completion queue");
  if (asked.db_addr == 0 || asked.db_addr % 8 != 0 || (asked.cqe_size != 64 && asked.cqe_size != 128))
    refuse(EINVAL, "create a completion queue",
           "its doorbell record or the size of its entries makes no sense");
  if (asked.cqe_comp_en != 0 || (asked.flags & ~MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX) != 0)
    refuse(EOPNOTSUPP, "create a completion queue", "the software NIC has no compressed or padded entries");
  if (command.in<std::uint32_t>(UVERBS_ATTR_CREATE_CQ_COMP_VECTOR) >= comp_vectors)
    refuse(EINVAL, "create a completion queue", "there is no such completion vector");
  CqMemory memory;
  memory.cqes = reinterpret_cast<std::byte*>(asked.buf_addr);
  memory.entries = cqe + 1;
  memory.stride_bytes = asked.cqe_size;
  memory.record = reinterpret_cast<std::uint32_t*>(asked.db_addr);
  memory.timestamps = (flags & IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION) != 0;
  memory.ignore_overrun = (flags & IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN) != 0;
  auto cq = std::make_unique<CqObject>(nic(), memory, asked.uar_page_index);
  cq->completions.object = command.in<std::uint64_t>(UVERBS_ATTR_CREATE_CQ_USER_HANDLE);
  cq->async.object = cq->completions.object;
  if (command.has(UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL)) {
    cq->completions.queue = queue_of(static_cast<int>(command.number(UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL)));
    if (cq->completions.queue == nullptr)
      refuse(EINVAL, "create a completion queue", "its channel is not one of the device's");
  }
  cq->async.queue = queue_of(static_cast<int>(command.number(UVERBS_ATTR_CREATE_CQ_EVENT_FD)));
  const mlx5_ib_create_cq_resp driver{cq->number, 0};
  command.out(UVERBS_ATTR_UHW_OUT, driver);
  command.out<std::uint32_t>(UVERBS_ATTR_CREATE_CQ_RESP_CQE, cqe);
  command.out_number(UVERBS_ATTR_CREATE_CQ_HANDLE, keep(std::move(cq)));
}

void Context::resize_cq(Command& command) {
  const auto asked = command.in<ib_uverbs_resize_cq>(UVERBS_ATTR_CORE_IN);
  const auto driver = command.in<mlx5_ib_resize_cq>(UVERBS_ATTR_UHW_IN);
  CqObject* cq = find<CqObject>(asked.cq_handle, "completion queue");
  check_cqes(driver.buf_addr, asked.cqe + 1, "resize a completion queue");
  if (driver.cqe_size != cq->stride_bytes())
    refuse(EINVAL, "resize a completion queue", "the size of its entries can't change");
  if (cq->unread() + 1 >= asked.cqe + 1)
    refuse(EINVAL, "resize a completion queue", "it holds more than that");
  if (!cq->resize(reinterpret_cast<std::byte*>(driver.buf_addr), asked.cqe + 1))
    refuse(EBUSY, "resize a completion queue", "it is full");
  ib_uverbs_resize_cq_resp out{};
  out.cqe = asked.cqe;
  command.out(UVERBS_ATTR_CORE_OUT, out);
}

void Context::destroy_cq(Command& command) {
  const auto handle = command.number(UVERBS_ATTR_DESTROY_CQ_HANDLE);
  CqObject* cq = find<CqObject>(handle, "completion queue");
  if (cq->users != 0) refuse(EBUSY, "destroy a completion queue", "a QP uses it");
  ib_uverbs_destroy_cq_resp out{};
  out.comp_events_reported = cq->completions.end();
  out.async_events_reported = cq->async.end();
  drop<CqObject>(handle, "completion queue");
  command.out(UVERBS_ATTR_DESTROY_CQ_RESP, out);
}

}  // namespace pollen::soft::uverbs
