#include "pollen/drivers/driver.hpp"

#include <arpa/inet.h>

#include <algorithm>

namespace pollen::driver {

std::string_view name(Transport transport) noexcept {
  switch (transport) {
    case Transport::rc:
      return "RC";
    case Transport::uc:
      return "UC";
    case Transport::ud:
      return "UD";
  }
  return "unknown transport";
}

std::string_view name(QpState state) noexcept {
  switch (state) {
    case QpState::reset:
      return "reset";
    case QpState::init:
      return "init";
    case QpState::rtr:
      return "rtr";
    case QpState::rts:
      return "rts";
    case QpState::sqd:
      return "sqd";
    case QpState::sqe:
      return "sqe";
    case QpState::error:
      return "error";
  }
  return "unknown state";
}

std::string_view name(GidType type) noexcept {
  switch (type) {
    case GidType::infiniband:
      return "InfiniBand";
    case GidType::roce_v1:
      return "RoCE v1";
    case GidType::roce_v2:
      return "RoCE v2";
  }
  return "unknown GID type";
}

bool Gid::is_ipv4_mapped() const noexcept {
  return std::all_of(bytes.begin(), bytes.begin() + 10, [](auto b) { return b == 0; }) && bytes[10] == 0xff &&
         bytes[11] == 0xff;
}

std::string to_string(const Gid& gid) {
  char text[INET6_ADDRSTRLEN];
  return inet_ntop(AF_INET6, gid.bytes.data(), text, sizeof text);
}

}  // namespace pollen::driver
