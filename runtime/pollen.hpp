// All that a worker app needs, in one header: lcores and their plan, the runtime with its workers,
// queues, memory, reports, the handshake between two processes, and the choice of a driver.
#pragma once

#include "pollen/base/error.hpp"
#include "pollen/drivers/driver.hpp"
#include "pollen/drivers/registry.hpp"
#include "pollen/lcore/lock.hpp"
#include "pollen/lcore/machine.hpp"
#include "pollen/lcore/options.hpp"
#include "pollen/lcore/plan.hpp"
#include "pollen/memory/arena.hpp"
#include "pollen/memory/copy.hpp"
#include "pollen/memory/pool.hpp"
#include "pollen/net/handshake.hpp"
#include "pollen/probe/prometheus.hpp"
#include "pollen/probe/report.hpp"
#include "pollen/queue/qp.hpp"
#include "pollen/worker/loop.hpp"
#include "pollen/worker/runtime.hpp"
#include "pollen/worker/worker.hpp"
