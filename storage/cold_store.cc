#include "storage/cold_store.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/hash/hash.h"
#include "fmt/format.h"
#include "proto/status.h"

namespace terrace {
namespace {

constexpr absl::Duration kWatchInterval = absl::Milliseconds(50);
constexpr size_t kDeletedPerStep = 1024;

// Weighted rendezvous: of equal budgets each folder gets its share, and one that drops out gives
// only its own.
double Preference(const BlockKey& key, const ColdFolder& folder) {
  const uint64_t hash = absl::HashOf(key, folder.path());
  const double uniform = (static_cast<double>(hash >> 11) + 0.5) * 0x1p-53;
  return static_cast<double>(folder.budget_bytes()) / -std::log(uniform);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ColdStore>> ColdStore::Open(std::vector<ColdFolderOptions> options) {
  if (options.empty()) return absl::InvalidArgumentError("ssd: no folder is named");
  std::set<std::string> paths;
  std::vector<std::unique_ptr<ColdFolder>> folders;
  for (ColdFolderOptions& one : options) {
    if (!paths.insert(one.path).second) {
      return absl::InvalidArgumentError(fmt::format("ssd: {} is named twice", one.path));
    }
    TERRACE_ASSIGN_OR_RETURN(auto folder, ColdFolder::Open(std::move(one)));
    folders.push_back(std::move(folder));
  }
  return std::unique_ptr<ColdStore>(new ColdStore(std::move(folders)));
}

ColdStore::ColdStore(std::vector<std::unique_ptr<ColdFolder>> folders)
    : folders_(std::move(folders)), watcher_([this] { Watch(); }) {}

ColdStore::~ColdStore() { Close(); }

// The watcher goes last: until then somebody may wait for a device that hangs.
void ColdStore::Close() {
  for (const auto& folder : folders_) folder->Close();
  {
    MutexLock lock(&mutex_);
    ending_ = true;
    ends_.SignalAll();
  }
  if (watcher_.joinable()) watcher_.join();
}

void ColdStore::Watch() {
  mutex_.Lock();
  while (!ending_) {
    ends_.WaitWithTimeout(&mutex_, kWatchInterval);
    mutex_.Unlock();
    for (const auto& folder : folders_) folder->CheckDeadlines();
    mutex_.Lock();
  }
  mutex_.Unlock();
}

void ColdStore::Find(std::span<const BlockKey> keys, std::span<ColdBlock> blocks) {
  folders_[0]->Find(keys, blocks);
  if (folders_.size() == 1) return;
  std::vector<ColdBlock> others(keys.size());
  for (size_t i = 1; i < folders_.size(); ++i) {
    folders_[i]->Find(keys, others);
    for (size_t k = 0; k < keys.size(); ++k) {
      const bool better =
          others[k].presence == Presence::kHere || blocks[k].presence == Presence::kAbsent;
      if (blocks[k].presence != Presence::kHere && better) blocks[k] = others[k];
    }
  }
}

ColdFolder* ColdStore::HolderOf(const BlockKey& key) {
  if (folders_.size() == 1) return folders_[0].get();
  for (const auto& folder : folders_) {
    ColdBlock block;
    folder->Find({&key, 1}, {&block, 1});
    if (block.presence == Presence::kHere) return folder.get();
  }
  return nullptr;
}

// The preferred folder of those that take writes; the preferred of all when none does, so that
// its answer says why.
ColdFolder* ColdStore::HomeFor(const BlockKey& key) {
  const auto rank = [&](const std::unique_ptr<ColdFolder>& folder) {
    return std::pair(folder->AcceptsWrites(), Preference(key, *folder));
  };
  return std::ranges::max_element(folders_, {}, rank)->get();
}

void ColdStore::Put(std::vector<ColdPut> puts) {
  for (ColdPut& put : puts) {
    ColdFolder* folder = HolderOf(put.key);
    if (folder == nullptr) folder = HomeFor(put.key);
    folder->Put(std::move(put));
  }
}

void ColdStore::Get(std::vector<ColdGet> gets) {
  for (ColdGet& get : gets) {
    ColdFolder* folder = HolderOf(get.key);
    if (folder == nullptr) folder = HomeFor(get.key);
    folder->Get(std::move(get));
  }
}

absl::Status ColdStore::Delete(std::span<const BlockKey> keys, ColdLeave why) {
  absl::Status first;
  for (const auto& folder : folders_) first.Update(folder->Delete(keys, why));
  return first;
}

absl::Status ColdStore::DeleteNamespace(NamespaceId ns,
                                        const std::function<bool(uint64_t)>& progress) {
  absl::Status first;
  uint64_t deleted = 0;
  for (const auto& folder : folders_) {
    folder->CountWrites(ns, /*doom=*/true);
    std::optional<BlockKey> after;
    std::vector<BlockKey> keys;
    do {
      keys.clear();
      absl::Status status = folder->Scan(ns, after, [&](const BlockKey& key, const BlockRecord&) {
        keys.push_back(key);
        return keys.size() < kDeletedPerStep;
      });
      if (status.ok()) status = folder->Delete(keys, ColdLeave::kForgotten);
      first.Update(status);
      if (!status.ok() || keys.empty()) break;
      after = keys.back();
      deleted += keys.size();
      if (!progress(deleted)) return absl::CancelledError("ssd: stopped by the caller");
    } while (true);
  }
  return first;
}

uint64_t ColdStore::CountWrites(NamespaceId ns) {
  uint64_t count = 0;
  for (const auto& folder : folders_) count += folder->CountWrites(ns, /*doom=*/false);
  return count;
}

absl::StatusOr<std::vector<ColdStore::Listed>> ColdStore::Scan(NamespaceId ns,
                                                               const std::optional<Listed>& after,
                                                               size_t limit) {
  std::vector<Listed> listed;
  for (size_t i = after ? after->folder : 0; i < folders_.size() && listed.size() < limit; ++i) {
    std::optional<BlockKey> from;
    if (after && after->folder == i) from = after->key;
    TERRACE_RETURN_IF_ERROR(
        folders_[i]->Scan(ns, from, [&](const BlockKey& key, const BlockRecord& record) {
          listed.push_back({i, key, record});
          return listed.size() < limit;
        }));
  }
  return listed;
}

void ColdStore::Touch(std::span<const BlockKey> keys, double moment) {
  for (const auto& folder : folders_) folder->Touch(keys, moment);
}

absl::Status ColdStore::WaitForCommit(absl::Duration timeout) {
  absl::Status first;
  for (const auto& folder : folders_) first.Update(folder->WaitForCommit(timeout));
  return first;
}

absl::Status ColdStore::WaitUntilLoaded(absl::Duration timeout) {
  absl::Status first;
  for (const auto& folder : folders_) first.Update(folder->WaitUntilLoaded(timeout));
  return first;
}

void ColdStore::SetPolicyClock(double now) {
  for (const auto& folder : folders_) folder->SetPolicyClock(now);
}

double ColdStore::policy_clock() const {
  double furthest = 0;
  for (const auto& folder : folders_) furthest = std::max(furthest, folder->policy_clock());
  return furthest;
}

std::vector<ColdFolderStats> ColdStore::Stats() const {
  std::vector<ColdFolderStats> stats;
  for (const auto& folder : folders_) stats.push_back(folder->Stats());
  return stats;
}

}  // namespace terrace
