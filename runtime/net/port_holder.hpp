// Who listens on a TCP port of this host: for the error that says it is in use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace pollen::net {

// "rdma_bw (pid 4711)", "a process of user 1000" where its descriptors may not be read, or empty.
// proc: where procfs is.
std::string port_holder(std::uint16_t port, const std::filesystem::path& proc = "/proc");

}  // namespace pollen::net
