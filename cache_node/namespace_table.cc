#include "cache_node/namespace_table.h"

#include <algorithm>
#include <cstring>

#include "cache_node/layout.h"
#include "cache_node/security.h"
#include "fmt/format.h"
#include "proto/status.h"

namespace terrace {
namespace {

// Blocks per round of a deletion: short enough for the mover to look after space in between.
constexpr uint64_t kForgetBatch = 1024;
constexpr size_t kMaxObservers = 64;  // of one deletion

NamespaceId RandomNamespaceId() {
  NamespaceId id;
  while (id.value == 0) std::memcpy(&id.value, RandomBytes(sizeof(id.value)).data(), 8);
  return id;
}

}  // namespace

OpenedNamespace::OpenedNamespace(std::string tenant, NamespaceSpec spec)
    : tenant_(std::move(tenant)),
      spec_(std::move(spec)),
      layout_id_(LayoutId(spec_.layout)),
      id_(RandomNamespaceId()) {
  std::ranges::copy(RandomBytes(secret_.size()), secret_.begin());
}

bool OpenedNamespace::RunIfLive(absl::FunctionRef<void()> work) {
  MutexLock lock(&life_mutex_);
  if (!live()) return false;
  work();
  return true;
}

void OpenedNamespace::BeginDeletion() {
  MutexLock lock(&life_mutex_);
  live_.store(false, std::memory_order_release);
}

absl::StatusOr<std::shared_ptr<OpenedNamespace>> NamespaceTable::Open(const std::string& tenant,
                                                                      const NamespaceSpec& spec,
                                                                      bool create, bool* created) {
  *created = false;
  if (!IsName(spec.name)) {
    return absl::InvalidArgumentError("name: expected [a-z0-9][a-z0-9._-]{0,62}");
  }
  TERRACE_RETURN_IF_ERROR(ValidateDefinition(spec.layout, spec.hash_scheme, max_block_bytes_));

  MutexLock lock(&mutex_);
  if (auto it = by_name_.find({tenant, spec.name}); it != by_name_.end()) {
    const NamespaceSpec& existing = it->second->spec();
    if (!it->second->live()) {
      return absl::FailedPreconditionError(
          fmt::format("namespace '{}' is being deleted", spec.name));
    }
    const std::string differences =
        Differences(existing.layout, existing.hash_scheme, spec.layout, spec.hash_scheme);
    if (differences.empty()) return it->second;
    return absl::FailedPreconditionError(
        fmt::format("namespace '{}' is defined differently: {}", spec.name, differences));
  }
  if (!create) return absl::NotFoundError(fmt::format("no namespace '{}'", spec.name));
  if (by_name_.size() >= max_namespaces_) {
    return absl::ResourceExhaustedError(
        fmt::format("the node has {} namespaces already (--max-namespaces)", by_name_.size()));
  }
  auto made = std::make_shared<OpenedNamespace>(tenant, spec);
  by_name_[{tenant, spec.name}] = made;
  by_id_[made->id().value] = made;
  *created = true;
  return made;
}

std::shared_ptr<OpenedNamespace> NamespaceTable::Find(const std::string& tenant,
                                                      NamespaceId id) const {
  MutexLock lock(&mutex_);
  auto it = by_id_.find(id.value);
  if (it == by_id_.end() || !it->second->live() || it->second->tenant() != tenant) return nullptr;
  return it->second;
}

std::vector<std::shared_ptr<OpenedNamespace>> NamespaceTable::List(
    const std::string& tenant) const {
  std::vector<std::shared_ptr<OpenedNamespace>> list;
  MutexLock lock(&mutex_);
  for (const auto& [name, entry] : by_name_) {
    if (tenant.empty() || name.first == tenant) list.push_back(entry);
  }
  return list;
}

absl::Status NamespaceTable::Delete(const std::string& tenant, const std::string& name,
                                    DeletionObserver observer) {
  // Not repeated in the message: they may be of any length.
  if (!IsName(tenant) || !IsName(name)) {
    return absl::NotFoundError("no namespace: tenant and name are [a-z0-9][a-z0-9._-]{0,62}");
  }
  MutexLock lock(&mutex_);
  auto it = by_name_.find({tenant, name});
  if (it == by_name_.end()) {
    return absl::NotFoundError(fmt::format("tenant '{}' has no namespace '{}'", tenant, name));
  }
  OpenedNamespace& target = *it->second;
  auto [deletion, begun] = deletions_.try_emplace(target.id().value);
  if (begun) {
    target.BeginDeletion();
    deletion->second.target = it->second;
  }
  if (deletion->second.observers.size() >= kMaxObservers) {
    return absl::ResourceExhaustedError("enough callers watch this deletion already");
  }
  deletion->second.observers.push_back(std::move(observer));
  return absl::OkStatus();
}

bool NamespaceTable::ForgetSome(TieredStore* store) {
  std::vector<std::pair<NamespaceId, bool>> targets;
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, deletion] : deletions_) {
      targets.emplace_back(NamespaceId{id}, !deletion.counted);
    }
  }
  for (const auto& [id, count_first] : targets) ForgetSome(store, id, count_first);
  return !targets.empty();
}

void NamespaceTable::ForgetSome(TieredStore* store, NamespaceId id, bool count_first) {
  const uint64_t total = count_first ? store->UsageByNamespace()[id].blocks : 0;
  const uint64_t forgotten = store->Forget(id, kForgetBatch);
  DeletionProgress progress;
  std::vector<DeletionObserver> observers;
  {
    MutexLock lock(&mutex_);
    auto it = deletions_.find(id.value);
    Deletion& deletion = it->second;
    if (count_first) deletion.progress.total = total;
    deletion.counted = true;
    deletion.progress.forgotten += forgotten;
    deletion.progress.done = forgotten == 0;
    progress = deletion.progress;
    observers = deletion.observers;
    if (progress.done) {
      by_name_.erase({deletion.target->tenant(), deletion.target->spec().name});
      by_id_.erase(id.value);
      deletions_.erase(it);
    }
  }
  for (const DeletionObserver& observer : observers) observer(progress);
}

size_t NamespaceTable::count() const {
  MutexLock lock(&mutex_);
  return by_name_.size();
}

}  // namespace terrace
