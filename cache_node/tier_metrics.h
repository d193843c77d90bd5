// A tier's numbers as metrics.
#pragma once

#include <vector>

#include "cache_node/tiered_store.h"
#include "proto/metrics.h"

namespace terrace {

void CollectTiers(const std::vector<TierStats>& tiers, std::vector<MetricSample>* out);
// The folders of the ssd tier, one by one.
void CollectFolders(const std::vector<ColdFolderStats>& folders, std::vector<MetricSample>* out);

}  // namespace terrace
