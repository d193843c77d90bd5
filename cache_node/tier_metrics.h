// A tier's numbers as metrics.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "cache_node/tiered_store.h"
#include "proto/metrics.h"
#include "storage/file_io.h"

namespace terrace {

// Blocks by outcome or by reason, under the names that metrics and the control plane share.
using NamedCounts = std::vector<std::pair<const char*, uint64_t>>;
NamedCounts EvictionsOf(const TierStats& tier);
// Of the host tier over an ssd tier: what became of blocks that left it, and of those that were
// asked of the ssd tier.
NamedCounts DemotionsOf(const TierStats& host);
NamedCounts FillsOf(const TierStats& host);

void CollectTiers(const std::vector<TierStats>& tiers, std::vector<MetricSample>* out);
// The folders of the ssd tier, one by one. `endurance` is what each device may be written in its
// life, 0 when nobody told; `up` the time in which they were written what their statistics say.
void CollectFolders(const std::vector<ColdFolderStats>& folders, uint64_t endurance,
                    absl::Duration up, std::vector<MetricSample>* out);
// What ColdFolderOptions::on_request is for: the folder's times, in `registry`, which outlives it.
std::function<void(IoKind, absl::Duration)> RequestTimes(const std::string& folder,
                                                         MetricRegistry* registry);

}  // namespace terrace
