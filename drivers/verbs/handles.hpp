// What libibverbs hands out, ended when its last holder lets go.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

namespace pollen::verbs {

struct HandleEnd {
  void operator()(ibv_comp_channel* channel) const noexcept { ibv_destroy_comp_channel(channel); }
  void operator()(ibv_cq* cq) const noexcept { ibv_destroy_cq(cq); }
  void operator()(ibv_qp* qp) const noexcept { ibv_destroy_qp(qp); }
  void operator()(ibv_mr* mr) const noexcept { ibv_dereg_mr(mr); }
  void operator()(ibv_pd* pd) const noexcept { ibv_dealloc_pd(pd); }
};
template <typename T>
using Handle = std::unique_ptr<T, HandleEnd>;

using ChannelHandle = Handle<ibv_comp_channel>;
using CqHandle = Handle<ibv_cq>;
using QpHandle = Handle<ibv_qp>;
using MrHandle = Handle<ibv_mr>;
// A domain lives on while a QP or an address is in it, whoever created it.
using PdHandle = std::shared_ptr<ibv_pd>;

}  // namespace pollen::verbs
