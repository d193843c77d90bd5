// The namespaces of a node: who may share blocks with whom. Thread-safe; no call blocks but where
// it creates one on a node with an ssd tier, or forgets one: that is written to the disk.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "cache_node/namespace_keeper.h"
#include "cache_node/tiered_store.h"
#include "proto/block.h"
#include "proto/block_key.h"
#include "proto/control.pb.h"
#include "proto/mutex.h"

namespace terrace {

// What a caller says a namespace is.
struct NamespaceSpec {
  std::string name;
  control::v1::Layout layout;
  control::v1::HashScheme hash_scheme;
};

// One namespace. Everything but its life is fixed when it is created.
class OpenedNamespace {
 public:
  OpenedNamespace(std::string tenant, NamespaceSpec spec);  // a new one
  explicit OpenedNamespace(const control::v1::NamespaceRecord& record);

  NamespaceId id() const { return id_; }
  const std::string& tenant() const { return tenant_; }
  const NamespaceSpec& spec() const { return spec_; }
  const NamespaceSecret& secret() const { return secret_; }
  uint64_t layout_id() const { return layout_id_; }  // carried by each envelope
  control::v1::NamespaceRecord ToRecord() const;
  BlockShape shape() const { return {spec_.layout.block_bytes(), spec_.layout.segments()}; }

  bool live() const { return live_.load(std::memory_order_acquire); }
  // Runs `work` unless the namespace is being deleted; deletion begins before or after `work`,
  // never during it. So nothing is published behind the back of a deletion. False: not run.
  bool RunIfLive(absl::FunctionRef<void()> work);
  // From here on nothing is accepted any more.
  void BeginDeletion();

 private:
  const std::string tenant_;
  const NamespaceSpec spec_;
  const uint64_t layout_id_;
  NamespaceId id_;
  NamespaceSecret secret_{};
  Mutex life_mutex_;
  std::atomic<bool> live_{true};  // written under life_mutex_
};

struct DeletionProgress {
  Forgotten forgotten;
  Forgotten total;  // when the deletion began
  bool done = false;
};

// Called on the mover's thread, without locks held; `done` comes last and once.
using DeletionObserver = std::function<void(const DeletionProgress&)>;

class NamespaceTable {
 public:
  NamespaceTable(uint64_t max_namespaces, uint32_t max_block_bytes)
      : max_namespaces_(max_namespaces), max_block_bytes_(max_block_bytes) {}

  // Takes over the namespaces that `keeper` has and tells it of changes from now on; deletions that
  // had begun go on. Once, before anything else. Errors of NamespaceKeeper::Load.
  absl::Status KeepIn(NamespaceKeeper* keeper);

  // The tenant's namespace of that name; created when `create` and there is none (then *created).
  // InvalidArgument names the field that is wrong in itself; FailedPrecondition each field that
  // differs from the existing definition, or that it is being deleted; NotFound;
  // ResourceExhausted at the bound on namespaces; an error of NamespaceKeeper::Save, and then it is
  // not created.
  absl::StatusOr<std::shared_ptr<OpenedNamespace>> Open(const std::string& tenant,
                                                        const NamespaceSpec& spec, bool create,
                                                        bool* created);
  // Null unless it is there, live, and the tenant's own.
  std::shared_ptr<OpenedNamespace> Find(const std::string& tenant, NamespaceId id) const;
  // A number that the tenant of a live namespace has as long as the node runs, from 1 on, and where
  // namespaces are kept, longer; 0 for other namespaces.
  uint32_t TenantOf(NamespaceId id);
  // Whether any has the number.
  bool HasTenant(uint32_t number) const;
  // The same of a tenant, whether it has namespaces or not.
  uint32_t NumberOf(const std::string& tenant);
  // Of one tenant, or of all when `tenant` is empty; ordered by tenant and name.
  std::vector<std::shared_ptr<OpenedNamespace>> List(const std::string& tenant) const;

  // Begins to forget a namespace and its blocks, or joins when that is under way; the work is
  // done by ForgetSome. NotFound; ResourceExhausted when 64 callers watch already.
  absl::Status Delete(const std::string& tenant, const std::string& name,
                      DeletionObserver observer);
  // One round of the deletions under way. False when there was nothing to do.
  bool ForgetSome(TieredStore* store);
  // Whether deletions are under way: those that found nothing to do are tried again later.
  bool Deleting() const;

  size_t count() const;

 private:
  struct Deletion {
    std::shared_ptr<OpenedNamespace> target;
    DeletionProgress progress;
    bool counted = false;  // progress.total is known
    std::vector<DeletionObserver> observers;
  };
  using Name = std::pair<std::string, std::string>;  // tenant, name

  bool ForgetSome(TieredStore* store, NamespaceId id, bool count_first);
  uint32_t Number(const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<OpenedNamespace> FindDefined(const std::string& tenant, const std::string& name);
  // Of all, and of `more` unless null.
  absl::Status Save(const OpenedNamespace* more);

  const uint64_t max_namespaces_;
  const uint32_t max_block_bytes_;
  NamespaceKeeper* keeper_ = nullptr;
  Mutex create_mutex_;  // held while one is created or its end is written; before mutex_
  mutable Mutex mutex_;
  absl::btree_map<Name, std::shared_ptr<OpenedNamespace>> by_name_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<OpenedNamespace>> by_id_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, uint32_t> numbers_ ABSL_GUARDED_BY(mutex_);  // of tenants
  uint32_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<uint64_t, Deletion> deletions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
