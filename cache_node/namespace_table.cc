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

OpenedNamespace::OpenedNamespace(const control::v1::NamespaceRecord& record)
    : tenant_(record.tenant()),
      spec_{record.name(), record.layout(), record.hash_scheme()},
      layout_id_(LayoutId(spec_.layout)),
      id_{record.id()},
      live_(!record.deleting()) {
  std::memcpy(secret_.data(), record.secret().data(),
              std::min(secret_.size(), record.secret().size()));
}

control::v1::NamespaceRecord OpenedNamespace::ToRecord() const {
  control::v1::NamespaceRecord record;
  record.set_tenant(tenant_);
  record.set_name(spec_.name);
  *record.mutable_layout() = spec_.layout;
  *record.mutable_hash_scheme() = spec_.hash_scheme;
  record.set_id(id_.value);
  record.set_secret(secret_.data(), secret_.size());
  record.set_deleting(!live());
  return record;
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

  std::shared_ptr<OpenedNamespace> found = FindDefined(tenant, spec.name);
  if (found == nullptr && create) {
    MutexLock creating(&create_mutex_);
    found = FindDefined(tenant, spec.name);
    if (found == nullptr) {
      if (count() >= max_namespaces_) {
        return absl::ResourceExhaustedError(
            fmt::format("the node has {} namespaces already (--max-namespaces)", count()));
      }
      auto made = std::make_shared<OpenedNamespace>(tenant, spec);
      TERRACE_RETURN_IF_ERROR(Save(made.get()));
      MutexLock lock(&mutex_);
      by_name_[{tenant, spec.name}] = made;
      by_id_[made->id().value] = made;
      *created = true;
      return made;
    }
  }
  if (found == nullptr) return absl::NotFoundError(fmt::format("no namespace '{}'", spec.name));
  if (!found->live()) {
    return absl::FailedPreconditionError(fmt::format("namespace '{}' is being deleted", spec.name));
  }
  const std::string differences =
      Differences(found->spec().layout, found->spec().hash_scheme, spec.layout, spec.hash_scheme);
  if (differences.empty()) return found;
  return absl::FailedPreconditionError(
      fmt::format("namespace '{}' is defined differently: {}", spec.name, differences));
}

std::shared_ptr<OpenedNamespace> NamespaceTable::FindDefined(const std::string& tenant,
                                                             const std::string& name) {
  MutexLock lock(&mutex_);
  const auto it = by_name_.find({tenant, name});
  return it == by_name_.end() ? nullptr : it->second;
}

absl::Status NamespaceTable::KeepIn(NamespaceKeeper* keeper) {
  TERRACE_ASSIGN_OR_RETURN(const control::v1::NamespaceRecords records, keeper->Load());
  keeper_ = keeper;
  MutexLock lock(&mutex_);
  for (const control::v1::NamespaceRecord& record : records.namespaces()) {
    auto kept = std::make_shared<OpenedNamespace>(record);
    by_name_[{kept->tenant(), kept->spec().name}] = kept;
    by_id_[kept->id().value] = kept;
    if (record.tenant_number() != 0) {
      numbers_.emplace(kept->tenant(), record.tenant_number());
      next_number_ = std::max(next_number_, record.tenant_number() + 1);
    }
    if (!kept->live()) deletions_[kept->id().value].target = kept;
  }
  return absl::OkStatus();
}

absl::Status NamespaceTable::Save(const OpenedNamespace* more) {
  if (keeper_ == nullptr) return absl::OkStatus();
  control::v1::NamespaceRecords records;
  {
    MutexLock lock(&mutex_);
    const auto add = [&](const OpenedNamespace& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      control::v1::NamespaceRecord& record = *records.add_namespaces();
      record = entry.ToRecord();
      record.set_tenant_number(Number(entry.tenant()));
    };
    for (const auto& [name, entry] : by_name_) add(*entry);
    if (more != nullptr) add(*more);
  }
  return keeper_->Save(std::move(records));
}

std::shared_ptr<OpenedNamespace> NamespaceTable::Find(const std::string& tenant,
                                                      NamespaceId id) const {
  MutexLock lock(&mutex_);
  auto it = by_id_.find(id.value);
  if (it == by_id_.end() || !it->second->live() || it->second->tenant() != tenant) return nullptr;
  return it->second;
}

uint32_t NamespaceTable::TenantOf(NamespaceId id) {
  MutexLock lock(&mutex_);
  const auto it = by_id_.find(id.value);
  if (it == by_id_.end() || !it->second->live()) return 0;
  return Number(it->second->tenant());
}

uint32_t NamespaceTable::Number(const std::string& tenant) {
  const auto [number, added] = numbers_.try_emplace(tenant, next_number_);
  if (added) ++next_number_;
  return number->second;
}

bool NamespaceTable::HasTenant(uint32_t number) const {
  MutexLock lock(&mutex_);
  return std::ranges::any_of(numbers_, [&](const auto& one) { return one.second == number; });
}

uint32_t NamespaceTable::NumberOf(const std::string& tenant) {
  MutexLock lock(&mutex_);
  return Number(tenant);
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
  bool any = false;
  for (const auto& [id, count_first] : targets) any |= ForgetSome(store, id, count_first);
  return any;
}

bool NamespaceTable::Deleting() const {
  MutexLock lock(&mutex_);
  return !deletions_.empty();
}

bool NamespaceTable::ForgetSome(TieredStore* store, NamespaceId id, bool count_first) {
  Forgotten total;
  if (count_first) {
    // From here on a restart goes on with the deletion.
    MutexLock writing(&create_mutex_);
    Save(nullptr).IgnoreError();  // logged; the deletion goes on all the same
    total = {store->UsageByNamespace()[id].blocks, store->CountCold(id).value_or(0)};
  }
  const Forgotten forgotten = store->Forget(id, kForgetBatch);
  // Nothing was found, or nothing could be deleted: only the catalogue's word ends it.
  const bool none = forgotten.copies() == 0;
  if (none) {
    const absl::StatusOr<uint64_t> left = store->CountCold(id);
    if (!left.ok() || *left > 0) return false;
  }
  DeletionProgress progress;
  std::vector<DeletionObserver> observers;
  {
    MutexLock lock(&mutex_);
    auto it = deletions_.find(id.value);
    Deletion& deletion = it->second;
    if (count_first) deletion.progress.total = total;
    deletion.counted = true;
    deletion.progress.forgotten.host += forgotten.host;
    deletion.progress.forgotten.ssd += forgotten.ssd;
    deletion.progress.done = none;
    progress = deletion.progress;
    observers = deletion.observers;
    if (progress.done) {
      by_name_.erase({deletion.target->tenant(), deletion.target->spec().name});
      by_id_.erase(id.value);
      deletions_.erase(it);
    }
  }
  if (progress.done) {
    MutexLock writing(&create_mutex_);
    Save(nullptr).IgnoreError();  // logged
  }
  for (const DeletionObserver& observer : observers) observer(progress);
  return true;
}

size_t NamespaceTable::count() const {
  MutexLock lock(&mutex_);
  return by_name_.size();
}

}  // namespace terrace
