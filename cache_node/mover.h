// What the node does to its blocks behind the readers' backs: frees space above the high mark,
// by way of the ssd tier where there is one, and forgets the blocks of deleted namespaces.
#pragma once

#include <atomic>
#include <cstdint>

#include "cache_node/background_loop.h"
#include "cache_node/namespace_table.h"
#include "cache_node/tiered_store.h"

namespace terrace {

// Thread-safe. Does not poll: puts and deletions wake it.
class Mover {
 public:
  // Both outlive the mover.
  Mover(TieredStore* store, NamespaceTable* namespaces);
  ~Mover();

  // A block of `bytes` was published. Wakes the thread once per 1/512 of the tier, which is less
  // than the room between the high mark and the end of the tier.
  void Published(uint64_t bytes);
  // There is work now: no space was found, or a namespace is to be forgotten.
  void Wake() { loop_.Wake(); }

 private:
  absl::Duration Work();

  TieredStore* const store_;
  NamespaceTable* const namespaces_;
  const uint64_t wake_step_;
  std::atomic<uint64_t> published_{0};
  BackgroundLoop loop_;  // last: its thread uses the others
};

}  // namespace terrace
