// What the connections of one data thread share. Everything outlives them.
#pragma once

#include "cache_node/data_metrics.h"
#include "cache_node/mover.h"
#include "cache_node/namespace_table.h"
#include "cache_node/options.h"
#include "cache_node/session_table.h"
#include "cache_node/tiered_store.h"
#include "cluster/transport.h"
#include "proto/clock.h"

namespace terrace {

struct DataPlane {
  Clock* clock = nullptr;
  TieredStore* store = nullptr;
  SessionTable* sessions = nullptr;
  NamespaceTable* namespaces = nullptr;
  Mover* mover = nullptr;
  DataMetrics* metrics = nullptr;
  NodeLimits limits;
};

}  // namespace terrace
