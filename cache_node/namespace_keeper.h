// The namespaces of a node, kept beside its blocks: without their ids and secrets none could be
// found again after a restart. One file `namespaces` in each folder of the ssd tier, replaced as a
// whole; without an ssd tier the same in shared memory, for as long as that outlives the process:
// "TRNS", format (4 bytes, 1), a NamespaceRecords message, CRC32C of all before it (4 bytes);
// little-endian. Holds secrets; readable by its owner alone.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache_node/descriptor_store.h"
#include "proto/control.pb.h"
#include "proto/mutex.h"

namespace terrace {

// Thread-safe. All calls block on the disk.
class NamespaceKeeper {
 public:
  explicit NamespaceKeeper(std::vector<std::string> folders) : folders_(std::move(folders)) {}
  // `memory` outlives this. A power cut takes it.
  explicit NamespaceKeeper(DescriptorStore* memory) : memory_(memory) {}

  // The latest records that any folder has; none where there is no file yet. DataLoss names a file
  // that is broken when no folder has a good one, FailedPrecondition one of a later format.
  absl::StatusOr<control::v1::NamespaceRecords> Load();
  // Survives a power cut. OK when at least one folder took it; a folder that did not is logged.
  absl::Status Save(control::v1::NamespaceRecords records);

 private:
  absl::StatusOr<control::v1::NamespaceRecords> LoadFromMemory();
  absl::Status SaveToMemory(const std::string& text);

  const std::vector<std::string> folders_;
  DescriptorStore* const memory_ = nullptr;  // null: in the folders
  Mutex mutex_;
  uint64_t serial_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
