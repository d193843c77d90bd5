// The ssd tier of a node: blocks at rest in one folder or several (devices), each with its own
// budget, catalogue and health. A folder that fails or hangs costs its own blocks; the others go
// on. What is promised about a block, and how, is told in storage/cold_folder.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/mutex.h"
#include "storage/cold_folder.h"
#include "storage/cold_request.h"

namespace terrace {

// Thread-safe.
class ColdStore {
 public:
  // Opens all folders. The first error of ColdFolder::Open; InvalidArgument for no folder at all
  // or one named twice.
  static absl::StatusOr<std::unique_ptr<ColdStore>> Open(std::vector<ColdFolderOptions> folders);
  ~ColdStore();
  // As ColdFolder::Close, of each: callbacks that come meanwhile may call this store.
  void Close();

  // `blocks` has room for each key. Reads no disk.
  void Find(std::span<const BlockKey> keys, std::span<ColdBlock> blocks);
  // A new block goes to one of the folders that take writes, by its key and their budgets.
  void Put(std::vector<ColdPut> puts);
  void Get(std::vector<ColdGet> gets);
  // Blocks. The first error; other folders are not held up by it.
  absl::Status Delete(std::span<const BlockKey> keys, ColdLeave why);
  // All blocks of a namespace, some thousand at a time, without holding up readers; those being
  // written leave when their writing ends (CountWrites). Blocks; `progress` gets the number deleted
  // so far and returns false to stop (Cancelled).
  absl::Status DeleteNamespace(NamespaceId ns, const std::function<bool(uint64_t)>& progress);
  // Blocks of a namespace on their way into a catalogue.
  uint64_t CountWrites(NamespaceId ns);
  // Up to `limit` blocks of a namespace in the order of keys within each folder, folder by
  // folder; begins after `after`. Fewer than `limit`: that was all.
  struct Listed {
    size_t folder = 0;
    BlockKey key;
    BlockRecord record;
  };
  absl::StatusOr<std::vector<Listed>> Scan(NamespaceId ns, const std::optional<Listed>& after,
                                           size_t limit);
  void Touch(std::span<const BlockKey> keys, double moment);
  absl::Status WaitForCommit(absl::Duration timeout);
  absl::Status WaitUntilLoaded(absl::Duration timeout);
  void SetPolicyClock(double now);
  double policy_clock() const;  // the furthest of the folders'

  size_t folders() const { return folders_.size(); }
  ColdFolder& folder(size_t i) { return *folders_[i]; }
  std::vector<ColdFolderStats> Stats() const;

 private:
  explicit ColdStore(std::vector<std::unique_ptr<ColdFolder>> folders);

  ColdFolder* HolderOf(const BlockKey& key);
  ColdFolder* HomeFor(const BlockKey& key);
  void Watch();

  const std::vector<std::unique_ptr<ColdFolder>> folders_;
  Mutex mutex_;
  CondVar ends_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watcher_;  // answers requests that hang
};

}  // namespace terrace
