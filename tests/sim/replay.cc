#include "tests/sim/replay.h"

#include <algorithm>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "storage/eviction_order.h"
#include "storage/frequency.h"
#include "storage/tier_policy.h"
#include "tests/cache_node/store_test_util.h"

namespace terrace {
namespace {

// Blocks put in one call: a client's frame.
constexpr size_t kFrameBlocks = 64;

// One tier without bytes: equal blocks, and the policy objects in the node's own order of calls.
class PolicyCache {
 public:
  explicit PolicyCache(uint64_t capacity) : capacity_(capacity) {
    clock_.SetCapacity(static_cast<double>(capacity));
    ghosts_.Reserve(capacity);
  }

  size_t Match(std::span<const uint64_t> ids) {
    const double moment = clock_.Moment();
    size_t run = 0;
    for (; run < ids.size(); ++run) {
      const auto found = blocks_.find(ids[run]);
      if (found == blocks_.end()) break;
      CountUse(found->second.get(), moment);
    }
    clock_.CountUses(run);
    return run;
  }

  void Put(std::span<const uint64_t> ids, uint32_t depth) {
    const double moment = clock_.Moment();
    for (const uint64_t id : ids) {
      auto [position, added] = blocks_.try_emplace(id);
      if (!added) {
        CountUse(position->second.get(), moment);
        ++depth;
        continue;
      }
      position->second = std::make_unique<Block>();
      Block* block = position->second.get();
      block->id = id;
      block->depth = depth++;
      if (blocks_.size() > capacity_) EvictFirst();
      block->score = AddUse(ghosts_.Recall(Mix(id)), moment);
      order_.Insert(block);
    }
    clock_.CountUses(ids.size());
  }

 private:
  struct Block : Ranked {
    uint64_t id = 0;
  };

  static void CountUse(Block* block, double moment) { block->score = AddUse(block->score, moment); }
  void EvictFirst() {
    auto* first = static_cast<Block*>(order_.First());
    order_.Remove(first);
    ghosts_.Remember(Mix(first->id), first->score);
    blocks_.erase(first->id);
  }

  const uint64_t capacity_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Block>> blocks_;
  EvictionOrder order_;
  DecayClock clock_{kHalfLifeTurnovers};
  GhostTable ghosts_;
};

void PutToStore(std::span<const BlockKey> keys, uint32_t depth, BlockShape shape,
                TieredStore* store) {
  std::vector<uint32_t> depths(keys.size());
  for (uint32_t& d : depths) d = depth++;
  std::vector<ReserveResult> results = store->Reserve(
      keys, std::vector(keys.size(), shape), std::vector<uint16_t>(keys.size(), 0), depths);
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].outcome != ReserveOutcome::kReserved) continue;
    Envelope envelope;
    envelope.key = keys[i];
    envelope.shape = shape;
    envelope.metadata.depth = depths[i];
    envelope.checksums.resize(shape.segments);
    results[i].reservation.Publish(std::move(envelope));
  }
}

}  // namespace

ReplayResult ReplayLru(const Trace& trace, uint64_t capacity) {
  ReplayResult result;
  std::list<uint64_t> order;  // most recent first
  absl::flat_hash_map<uint64_t, std::list<uint64_t>::iterator> blocks;
  for (const TraceRequest& request : trace) {
    result.references += request.blocks.size();
    for (const uint64_t id : request.blocks) {
      if (!blocks.contains(id)) break;
      ++result.hits;
    }
    for (size_t i = request.blocks.size(); i-- > 0;) {
      const uint64_t id = request.blocks[i];
      if (const auto found = blocks.find(id); found != blocks.end()) {
        order.splice(order.begin(), order, found->second);
      } else {
        order.push_front(id);
        blocks[id] = order.begin();
      }
    }
    for (; blocks.size() > capacity; order.pop_back()) blocks.erase(order.back());
  }
  return result;
}

ReplayResult ReplayPolicy(const Trace& trace, uint64_t capacity) {
  ReplayResult result;
  PolicyCache cache(capacity);
  for (const TraceRequest& request : trace) {
    const std::span<const uint64_t> ids = request.blocks;
    const size_t run = cache.Match(ids);
    for (size_t i = run; i < ids.size(); i += kFrameBlocks) {
      cache.Put(ids.subspan(i, std::min(kFrameBlocks, ids.size() - i)), static_cast<uint32_t>(i));
    }
    result.references += ids.size();
    result.hits += run;
  }
  return result;
}

ReplayResult ReplayStore(const Trace& trace, BlockShape shape, TieredStore* store) {
  ReplayResult result;
  std::vector<BlockKey> path;
  for (const TraceRequest& request : trace) {
    path.clear();
    for (const uint64_t id : request.blocks) path.push_back(TestKey(id));
    const std::span<const BlockKey> keys = path;
    const size_t run = store->Match(keys, /*count_use=*/true, nullptr, nullptr);
    for (size_t i = run; i < keys.size(); i += kFrameBlocks) {
      PutToStore(keys.subspan(i, std::min(kFrameBlocks, keys.size() - i)), static_cast<uint32_t>(i),
                 shape, store);
    }
    store->Tidy();
    result.references += keys.size();
    result.hits += run;
  }
  return result;
}

}  // namespace terrace
