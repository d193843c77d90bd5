// What --ssd says: PATH[:BYTES].
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/cold_folder.h"

namespace terrace {

struct SsdFolder {
  std::string path;
  uint64_t bytes = 0;  // 0: four fifths of the device (DefaultSsdBytes)
};

// Folders of the ssd tier belong to a cluster; a node without one is its own.
constexpr char kLocalCluster[] = "local";

// Of a folder of the ssd tier: below this it holds too little to be worth its catalogue.
constexpr uint64_t kMinSsdBytes = 256 << 20;
constexpr uint64_t kMaxSsdBytes = kMaxFolderBytes;

// Everything after the last colon is a size where it reads as one. InvalidArgument says what is
// wrong; names no flag.
absl::StatusOr<SsdFolder> ParseSsdFolder(std::string_view text);
absl::StatusOr<std::vector<SsdFolder>> ParseSsdFolders(const std::vector<std::string>& texts);

// Four fifths of the device on which `path` is or will be. Unavailable when it cannot be told.
absl::StatusOr<uint64_t> DefaultSsdBytes(const std::string& path);

}  // namespace terrace
