// Replays a trace through a cache and counts prefix-contiguous hits: blocks of a request that are
// there up to the first that is not, over all block references.
#pragma once

#include <cstdint>

#include "cache_node/tiered_store.h"
#include "proto/block.h"
#include "tests/sim/trace.h"

namespace terrace {

struct ReplayResult {
  uint64_t references = 0;
  uint64_t hits = 0;

  double hit_rate() const { return static_cast<double>(hits) / static_cast<double>(references); }
};

// An exact LRU of `capacity` blocks; the whole path is touched leaf to root, so leaves go first.
ReplayResult ReplayLru(const Trace& trace, uint64_t capacity);

// The node's policy objects (storage/) on `capacity` blocks of equal size.
ReplayResult ReplayPolicy(const Trace& trace, uint64_t capacity);

// The real store, as a client uses it: match, then put what is missing in frames. Values are not
// written. Tidy runs after each request.
ReplayResult ReplayStore(const Trace& trace, BlockShape shape, TieredStore* store);

}  // namespace terrace
