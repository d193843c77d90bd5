// Requests to a FileIo that a background thread waits for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/disk_format.h"
#include "storage/file_io.h"

namespace terrace {

// What a result that a request completed with means: OK, ResourceExhausted for a full disk, else
// Unavailable.
absl::Status IoStatus(int64_t result);

struct alignas(kPageBytes) DiskPage {
  std::byte bytes[kPageBytes];
};

struct PageAddress {
  int file = -1;
  uint64_t offset = 0;
};

// All pages, in the order asked for; a page that could not be read is all zeros, which parses as
// nothing. DeadlineExceeded when the device did not answer in time.
absl::StatusOr<std::vector<DiskPage>> ReadPages(FileIo* io, std::span<const PageAddress> addresses,
                                                absl::Duration timeout);

// Data sync of all files. The first error, or DeadlineExceeded.
absl::Status SyncFiles(FileIo* io, std::span<const int> files, absl::Duration timeout);

}  // namespace terrace
