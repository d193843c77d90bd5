// The ssd tier as the node runs it: the cold store, the policy's clock for it, and the thread that
// keeps room in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_node/background_loop.h"
#include "cache_node/write_allowance.h"
#include "proto/mutex.h"
#include "storage/cold_store.h"
#include "storage/frequency.h"
#include "storage/tier_policy.h"

namespace terrace {

struct ColdTierOptions {
  std::vector<ColdFolderOptions> folders;
  Watermarks marks{.high = 0.95, .low = 0.93};  // of each folder's slots
  absl::Duration max_age;                       // blocks older than this expire; zero: never
  uint64_t write_budget_per_day = 0;            // bytes of blocks; 0: no bound
  uint64_t write_rate = 0;                      // the same per second, of demotions
};

// Thread-safe. What blocks on the disk says so.
class ColdTier {
 public:
  // Errors as of ColdStore::Open. Ready at once; entries load in the background.
  static absl::StatusOr<std::unique_ptr<ColdTier>> Open(ColdTierOptions options);
  ~ColdTier();
  // Waits for requests in flight; what was stored is durable after it. Callbacks that come
  // meanwhile may call this tier, which refuses what is new.
  void Close();

  // `blocks` has room for each key. Reads no disk.
  void Find(std::span<const BlockKey> keys, std::span<ColdBlock> blocks);
  // A request uses these blocks, wherever they are; those that are here get a use each.
  void Touch(std::span<const BlockKey> keys);
  // So many blocks have been used, of whatever tier: the clock goes on.
  void Elapse(uint64_t uses) { clock_.CountUses(uses); }

  // Whether a block of this kind would be written now: policy, budget and health.
  bool Admits(TrafficClass traffic_class, bool seen_again) const;
  // How long the next demotion should wait for the sake of the rate; zero: not at all.
  absl::Duration DemotionPause() const { return pace_.Wait(); }
  // ColdPut and ColdGet without what the tier knows itself; `put.score` is relative to now.
  // Put's answers: OK; anything else: no copy here.
  void Store(ColdPut put);
  void Load(ColdGet get);

  // Block.
  absl::Status Delete(const BlockKey& key);
  // Deletes at least `limit` blocks of the namespace or all that are left; returns how many.
  absl::StatusOr<uint64_t> Forget(NamespaceId ns, uint64_t limit);
  // Those on their way into the tier included.
  absl::StatusOr<uint64_t> CountBlocks(NamespaceId ns);

  ColdStore& store() { return *store_; }
  const std::vector<std::string>& paths() const { return paths_; }
  std::vector<ColdFolderStats> FolderStats() const { return store_->Stats(); }
  uint64_t hits() const { return hits_.load(std::memory_order_relaxed); }
  uint64_t misses() const { return misses_.load(std::memory_order_relaxed); }
  // Blocks of a request that were found here alone, and nowhere.
  void CountRequested(uint64_t hits, uint64_t misses) {
    hits_.fetch_add(hits, std::memory_order_relaxed);
    misses_.fetch_add(misses, std::memory_order_relaxed);
  }
  double now() const { return clock_.Now(); }  // the unit of scores
  double turnovers() const { return clock_.Turnovers(); }

 private:
  ColdTier(ColdTierOptions options, std::unique_ptr<ColdStore> store);

  void Wake();
  absl::Duration Work();
  // Whether anything was given up.
  bool KeepRoom(ColdFolder* folder);
  bool Recut(ColdFolder* folder, uint32_t length);

  const ColdTierOptions options_;
  std::vector<std::string> paths_;
  DecayClock clock_{kHalfLifeTurnovers};
  std::atomic<uint64_t> hits_{0}, misses_{0};
  std::atomic<uint64_t> stored_since_look_{0};
  std::atomic<uint32_t> wanted_length_{0};  // a block of this length found no slot
  std::atomic<bool> full_{false};
  WriteAllowance budget_, pace_;
  const std::unique_ptr<ColdStore> store_;
  Mutex loop_mutex_;
  std::unique_ptr<BackgroundLoop> loop_ ABSL_GUARDED_BY(loop_mutex_);  // null at the end
};

}  // namespace terrace
