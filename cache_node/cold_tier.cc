#include "cache_node/cold_tier.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "proto/log.h"
#include "proto/status.h"

namespace terrace {
namespace {

// Blocks given up at a time: their keys come from the catalogue.
constexpr size_t kVictims = 256;
// The loop looks again after this many bytes, long before the marks are apart.
constexpr uint64_t kLookEvery = 16 << 20;
constexpr uint64_t kTypicalBlockBytes = 64 << 10;  // before there are any
constexpr absl::Duration kLookAtLeast = absl::Seconds(1);
// Of a day's write budget, what may be spent in one burst.
constexpr double kBurstShare = 1.0 / 24;
constexpr double kSecondsPerDay = 86400;
// Of the write rate, what may be written in one burst.
constexpr double kBurstSeconds = 0.1;

// Slots whose blocks are gone come free with the next commit.
uint64_t InUse(const ColdFolderStats& stats) {
  return stats.occupied_bytes - std::min(stats.occupied_bytes, stats.extents.quarantined_bytes);
}

std::vector<BlockKey> KeysOf(const std::vector<ColdVictim>& victims) {
  std::vector<BlockKey> keys;
  keys.reserve(victims.size());
  for (const ColdVictim& victim : victims) keys.push_back(victim.key);
  return keys;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ColdTier>> ColdTier::Open(ColdTierOptions options) {
  TERRACE_RETURN_IF_ERROR(Validate(options.marks));
  std::vector<ColdFolderOptions> folders = std::exchange(options.folders, {});
  std::vector<std::string> paths;
  for (const ColdFolderOptions& folder : folders) paths.push_back(folder.path);
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<ColdStore> store, ColdStore::Open(std::move(folders)));
  std::unique_ptr<ColdTier> tier(new ColdTier(std::move(options), std::move(store)));
  tier->paths_ = std::move(paths);
  return tier;
}

ColdTier::ColdTier(ColdTierOptions options, std::unique_ptr<ColdStore> store)
    : options_(std::move(options)),
      budget_(static_cast<double>(options_.write_budget_per_day) / kSecondsPerDay,
              static_cast<double>(options_.write_budget_per_day) * kBurstShare),
      pace_(static_cast<double>(options_.write_rate),
            static_cast<double>(options_.write_rate) * kBurstSeconds),
      store_(std::move(store)) {
  clock_.Resume(store_->policy_clock());
  MutexLock lock(&loop_mutex_);
  loop_ = std::make_unique<BackgroundLoop>("terrace-cold", [this] { return Work(); });
}

ColdTier::~ColdTier() { Close(); }

void ColdTier::Close() {
  std::unique_ptr<BackgroundLoop> loop;
  {
    MutexLock lock(&loop_mutex_);
    loop = std::move(loop_);
  }
  loop.reset();
  store_->SetPolicyClock(clock_.Now());
  store_->Close();
}

void ColdTier::Wake() {
  MutexLock lock(&loop_mutex_);
  if (loop_) loop_->Wake();
}

void ColdTier::Find(std::span<const BlockKey> keys, std::span<ColdBlock> blocks) {
  store_->Find(keys, blocks);
}

void ColdTier::Touch(std::span<const BlockKey> keys) {
  if (!keys.empty()) store_->Touch(keys, clock_.Moment());
}

bool ColdTier::Admits(TrafficClass traffic_class, bool seen_again) const {
  return AdmitsToSsd(traffic_class, seen_again, !full_.load(std::memory_order_relaxed)) &&
         budget_.Wait() == absl::ZeroDuration();
}

void ColdTier::Store(ColdPut put) {
  const uint64_t bytes = put.value.size();
  pace_.Spend(bytes);
  budget_.Spend(bytes);  // before it is written: many are on their way at once
  put.score += clock_.Now();
  if (options_.max_age > absl::ZeroDuration()) {
    put.expires_at =
        static_cast<uint32_t>(std::time(nullptr) + absl::ToInt64Seconds(options_.max_age));
  }
  put.done = [this, bytes, done = std::move(put.done)](absl::Status status) mutable {
    if (!status.ok()) budget_.Return(bytes);
    if (absl::IsResourceExhausted(status)) {
      wanted_length_.store(static_cast<uint32_t>(bytes), std::memory_order_relaxed);
      Wake();
    } else if (status.ok()) {
      const uint64_t before = stored_since_look_.fetch_add(bytes, std::memory_order_relaxed);
      if (before / kLookEvery != (before + bytes) / kLookEvery) Wake();
    }
    done(std::move(status));
  };
  std::vector<ColdPut> one;
  one.push_back(std::move(put));
  store_->Put(std::move(one));
}

void ColdTier::Load(ColdGet get) {
  std::vector<ColdGet> one;
  one.push_back(std::move(get));
  store_->Get(std::move(one));
}

absl::Status ColdTier::Delete(const BlockKey& key) {
  return store_->Delete({&key, 1}, ColdLeave::kForgotten);
}

absl::StatusOr<uint64_t> ColdTier::Forget(NamespaceId ns, uint64_t limit) {
  uint64_t deleted = 0;
  const absl::Status status = store_->DeleteNamespace(ns, [&](uint64_t so_far) {
    deleted = so_far;
    return deleted < limit;
  });
  if (status.ok() || absl::IsCancelled(status)) return deleted;
  return status;
}

absl::StatusOr<uint64_t> ColdTier::CountBlocks(NamespaceId ns) {
  // First those on their way: whoever has arrived since is in the catalogue.
  uint64_t blocks = store_->CountWrites(ns);
  for (size_t i = 0; i < store_->folders(); ++i) {
    TERRACE_RETURN_IF_ERROR(store_->folder(i).Scan(
        ns, std::nullopt, [&](const BlockKey&, const BlockRecord&) { return ++blocks > 0; }));
  }
  return blocks;
}

// --- The thread

absl::Duration ColdTier::Work() {
  const uint32_t wanted = wanted_length_.exchange(0, std::memory_order_relaxed);
  bool any = false, full = true;
  double blocks = 0;
  for (size_t i = 0; i < store_->folders(); ++i) {
    ColdFolder& folder = store_->folder(i);
    if (wanted > 0 && folder.Stats().loaded) any |= Recut(&folder, wanted);
    any |= KeepRoom(&folder);
    const ColdFolderStats stats = folder.Stats();
    blocks += stats.blocks == 0
                  ? static_cast<double>(stats.slot_budget_bytes / kTypicalBlockBytes)
                  : CapacityInBlocks(stats.slot_budget_bytes, stats.blocks, stats.occupied_bytes);
    full = full && static_cast<double>(InUse(stats)) >=
                       options_.marks.low * 0.9 * static_cast<double>(stats.slot_budget_bytes);
  }
  full_.store(full, std::memory_order_relaxed);
  clock_.SetCapacity(blocks);
  store_->SetPolicyClock(clock_.Now());
  return any ? absl::ZeroDuration() : kLookAtLeast;
}

bool ColdTier::KeepRoom(ColdFolder* folder) {
  const ColdFolderStats stats = folder->Stats();
  if (!stats.loaded) return false;
  uint64_t to_free = BytesToFree(options_.marks, InUse(stats), stats.slot_budget_bytes);
  bool any = false;
  while (to_free > 0) {
    const absl::StatusOr<std::vector<ColdVictim>> victims = folder->NextVictims(kVictims);
    if (!victims.ok() || victims->empty()) return any;
    std::vector<BlockKey> keys;
    uint64_t freed = 0;
    for (const ColdVictim& victim : *victims) {
      if (freed >= to_free) break;
      keys.push_back(victim.key);
      freed += victim.length;
    }
    if (!folder->Delete(keys, ColdLeave::kEvicted).ok()) return any;
    any = true;
    to_free -= std::min(to_free, freed);
  }
  return any;
}

// A block of this length found no slot: an extent of another size gives way, else the blocks that
// are worth least.
bool ColdTier::Recut(ColdFolder* folder, uint32_t length) {
  absl::StatusOr<std::vector<ColdVictim>> victims = folder->VictimsForLength(length);
  if (victims.ok() && victims->empty()) victims = folder->NextVictims(kVictims);
  if (!victims.ok() || victims->empty()) return false;
  return folder->Delete(KeysOf(*victims), ColdLeave::kEvicted).ok();
}

}  // namespace terrace
