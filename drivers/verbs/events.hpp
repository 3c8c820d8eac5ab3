// A device's asynchronous events in words.
#pragma once

#include <infiniband/verbs.h>

#include <optional>
#include <string>

#include "pollen/drivers/driver.hpp"

namespace pollen::verbs {

class VerbsPort;

// The port whose QP or CQ the event is about; null: it is about a port or the whole device.
const VerbsPort* owner_of(const ibv_async_event& event) noexcept;

// None: nothing that a program could act on.
std::optional<driver::Event> describe(const ibv_async_event& event, const std::string& device);

}  // namespace pollen::verbs
