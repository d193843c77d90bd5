// A tier's numbers as metrics.
#pragma once

#include <vector>

#include "cache_node/tiered_store.h"
#include "proto/metrics.h"

namespace terrace {

void CollectTier(const TierStats& stats, std::vector<MetricSample>* out);

}  // namespace terrace
