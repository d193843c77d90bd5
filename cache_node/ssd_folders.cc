#include "cache_node/ssd_folders.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "fmt/format.h"
#include "proto/status.h"
#include "proto/units.h"

namespace terrace {

absl::StatusOr<SsdFolder> ParseSsdFolder(std::string_view text) {
  SsdFolder folder{std::string(text), 0};
  if (const size_t colon = text.rfind(':'); colon != std::string_view::npos) {
    const std::string_view size = text.substr(colon + 1);
    const absl::StatusOr<uint64_t> bytes = ParseBytes(size);
    // What begins like a number is meant as one: a typo must not take the whole device.
    const bool meant =
        size.empty() || std::string_view("0123456789+-.").find(size[0]) != std::string_view::npos;
    if (bytes.ok() && *bytes > 0) {
      folder = {std::string(text.substr(0, colon)), *bytes};
    } else if (meant) {
      const std::string why =
          bytes.ok() ? fmt::format(
                           "a budget of 0 holds nothing: give {} at least, or leave ':{}' "
                           "out for four fifths of the device",
                           FormatBytes(kMinSsdBytes), size)
                     : std::string(bytes.status().message());
      return absl::InvalidArgumentError(fmt::format(
          "'{}': {}; expected PATH or PATH:BYTES, as in /mnt/nvme0/terrace:800GiB", text, why));
    }
  }
  if (folder.path.empty()) return absl::InvalidArgumentError("the path is empty");
  if (folder.bytes != 0 && folder.bytes < kMinSsdBytes) {
    return absl::InvalidArgumentError(
        fmt::format("'{}': at least {} are needed", text, FormatBytes(kMinSsdBytes)));
  }
  if (folder.bytes > kMaxSsdBytes) {
    return absl::InvalidArgumentError(fmt::format("'{}': at most {} are possible in one folder",
                                                  text, FormatBytes(kMaxSsdBytes)));
  }
  return folder;
}

absl::StatusOr<std::vector<SsdFolder>> ParseSsdFolders(const std::vector<std::string>& texts) {
  std::vector<SsdFolder> folders;
  std::set<std::string> paths;
  for (const std::string& text : texts) {
    TERRACE_ASSIGN_OR_RETURN(SsdFolder folder, ParseSsdFolder(text));
    // A slash at the end makes no other folder.
    auto path = (std::filesystem::path(folder.path) / "").lexically_normal().string();
    if (!paths.insert(path).second) {
      return absl::InvalidArgumentError(fmt::format("{} is named twice", folder.path));
    }
    folders.push_back(std::move(folder));
  }
  return folders;
}

absl::StatusOr<uint64_t> DefaultSsdBytes(const std::string& path) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(path, error);
  while (!error && !std::filesystem::exists(there, error) && there.has_relative_path()) {
    there = there.parent_path();
  }
  const std::filesystem::space_info space = std::filesystem::space(there, error);
  if (error) {
    return absl::UnavailableError(
        fmt::format("{}: {}; give the size as PATH:BYTES", path, error.message()));
  }
  return std::min<uint64_t>(space.capacity / 5 * 4, kMaxSsdBytes);
}

}  // namespace terrace
