// Where the ssd rows keep their files.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace terrace::bench {

// A new, empty folder, gone with all that is in it when the object goes.
class SsdFolder {
 public:
  // Within `parent`; when that is empty, within TMPDIR, or within `fallback` where TMPDIR is
  // memory. FailedPrecondition, naming the flag that helps, when the file system is memory,
  // has no direct I/O, or has less than `bytes` to give.
  static absl::StatusOr<SsdFolder> Make(std::string parent, const std::string& fallback,
                                        uint64_t bytes);
  SsdFolder(SsdFolder&& other) noexcept { path_.swap(other.path_); }
  ~SsdFolder();

  const std::string& path() const { return path_; }

 private:
  explicit SsdFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace terrace::bench
