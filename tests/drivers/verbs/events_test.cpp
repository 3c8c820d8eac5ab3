// Events that a device raises, in words: made up here, as rxe raises few of them.
#include "pollen/drivers/verbs/events.hpp"

#include <doctest/doctest.h>

using namespace pollen;
using Kind = driver::Event::Kind;

namespace {

bool holds(const std::string& sentence, const std::string& words) {
  return sentence.find(words) != std::string::npos;
}

}  // namespace

TEST_SUITE("verbs.events") {
  TEST_CASE("a QP's event names the QP and what to check") {
    ibv_qp qp{};
    qp.qp_num = 4711;
    ibv_async_event raw{};
    raw.element.qp = &qp;
    for (const auto& [type, words] :
         {std::pair{IBV_EVENT_QP_ACCESS_ERR, "rkey"}, std::pair{IBV_EVENT_QP_REQ_ERR, "MTU"},
          std::pair{IBV_EVENT_QP_FATAL, "kernel log"}}) {
      raw.event_type = type;
      const auto event = verbs::describe(raw, "rxe0");
      REQUIRE(event);
      CHECK(event->kind == Kind::qp_error);
      CHECK(event->number == 4711);
      CHECK(holds(event->text, "4711"));
      CHECK(holds(event->text, words));
    }
  }

  TEST_CASE("a port's event names device and port, and one about the whole device is fatal") {
    ibv_async_event raw{};
    raw.element.port_num = 2;
    for (const auto& [type, kind] :
         {std::pair{IBV_EVENT_PORT_ACTIVE, Kind::port_up}, std::pair{IBV_EVENT_PORT_ERR, Kind::port_down},
          std::pair{IBV_EVENT_GID_CHANGE, Kind::gid_change},
          std::pair{IBV_EVENT_LID_CHANGE, Kind::gid_change}}) {
      raw.event_type = type;
      const auto event = verbs::describe(raw, "bnxt_re0");
      REQUIRE(event);
      CHECK(event->kind == kind);
      CHECK(event->number == 2);
      CHECK(holds(event->text, "bnxt_re0 port 2"));
    }
    raw.event_type = IBV_EVENT_DEVICE_FATAL;
    CHECK(verbs::describe(raw, "bnxt_re0")->kind == Kind::device_fatal);
  }

  TEST_CASE("what a program can't act on is no event") {
    ibv_async_event raw{};
    for (const auto type :
         {IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_PATH_MIG, IBV_EVENT_QP_LAST_WQE_REACHED,
          IBV_EVENT_SM_CHANGE, IBV_EVENT_CLIENT_REREGISTER}) {
      raw.event_type = type;
      CHECK_FALSE(verbs::describe(raw, "rxe0"));
    }
  }
}
