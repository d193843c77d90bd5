// The namespaces of a node, kept beside the blocks of its ssd tier: without their ids and secrets
// no block could be found there after a restart. One file `namespaces` in each folder, replaced as
// a whole: "TRNS", format (4 bytes, 1), a NamespaceRecords message, CRC32C of all before it
// (4 bytes); little-endian. Holds secrets; readable by its owner alone.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/control.pb.h"
#include "proto/mutex.h"

namespace terrace {

// Thread-safe. All calls block on the disk.
class NamespaceKeeper {
 public:
  explicit NamespaceKeeper(std::vector<std::string> folders) : folders_(std::move(folders)) {}

  // The latest records that any folder has; none where there is no file yet. DataLoss names a file
  // that is broken when no folder has a good one, FailedPrecondition one of a later format.
  absl::StatusOr<control::v1::NamespaceRecords> Load();
  // Survives a power cut. OK when at least one folder took it; a folder that did not is logged.
  absl::Status Save(control::v1::NamespaceRecords records);

 private:
  const std::vector<std::string> folders_;
  Mutex mutex_;
  uint64_t serial_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
