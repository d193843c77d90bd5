// Whose folder it is: the file `terrace-ssd` at its top, and the lock that keeps a second process
// out. Text, one "name value" per line, in this order:
//
//   format 1                what this build writes; a later one is refused
//   cluster NAME
//   node NAME
//   folder 16 HEX           drawn when the folder is made
//   extent-bytes NUMBER     the same for the life of the folder
//
// There is no earlier format. A format that needs an upgrade gets one here: read the old text,
// convert, and replace the file last, in one step.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace terrace {

struct FolderIdentity {
  std::string cluster;
  std::string node;
  uint64_t folder_id = 0;
  uint64_t extent_bytes = 0;
  auto operator<=>(const FolderIdentity&) const = default;
};

std::string FormatIdentity(const FolderIdentity& identity);
// FailedPrecondition for a later format, DataLoss for what is no identity at all.
absl::StatusOr<FolderIdentity> ParseIdentity(std::string_view text);

// Held as long as the object lives; a process that dies lets go of it.
class FolderLock {
 public:
  // Makes the folder if it is absent. FailedPrecondition when another process holds the lock, or
  // when there is no identity and the folder holds anything else, which is left as it is;
  // PermissionDenied when the folder cannot be written.
  static absl::StatusOr<FolderLock> Take(const std::string& folder);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_;
};

// What Take and ClaimFolder would answer now, but that another process may hold the lock. Makes and
// changes nothing.
absl::Status LookAtFolder(const std::string& folder, const FolderIdentity& wanted);
// FailedPrecondition when another process holds the lock, in the words of Take. Holds it itself for
// a moment: who takes it just then is refused.
absl::Status LookAtLock(const std::string& folder);

// Reads the folder's identity, or makes `wanted` its identity when the folder is empty; the lock
// is held. The answer has the folder's own id and extent size. FailedPrecondition when it belongs
// to another node or cluster, is no folder of ours, or is of a later format.
absl::StatusOr<FolderIdentity> ClaimFolder(const std::string& folder, const FolderIdentity& wanted);

// The whole text under its name, or what was there before, whatever happens; it survives a power
// cut. PermissionDenied, ResourceExhausted, FailedPrecondition.
absl::Status ReplaceFile(const std::string& folder, const std::string& name,
                         const std::string& text);

}  // namespace terrace
