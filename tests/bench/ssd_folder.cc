#include "tests/bench/ssd_folder.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "fmt/format.h"
#include "storage/cold_operation.h"

namespace terrace::bench {
namespace {

bool IsMemory(const std::string& folder) {
  struct statfs status;
  return ::statfs(folder.c_str(), &status) == 0 && status.f_type == TMPFS_MAGIC;
}

bool HasDirectIo(const std::string& folder) {
  const std::string probe = folder + "/probe";
  const int file = ::open(probe.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0600);
  if (file >= 0) ::close(file);
  ::unlink(probe.c_str());
  return file >= 0;
}

}  // namespace

absl::StatusOr<SsdFolder> SsdFolder::Make(std::string parent, const std::string& fallback,
                                          uint64_t bytes) {
  std::error_code error;
  if (parent.empty()) {
    parent = std::filesystem::temp_directory_path(error);
    if (parent.empty() || IsMemory(parent)) parent = fallback;
  }
  const auto space = std::filesystem::space(parent, error);
  // The tier leaves a share of its device alone.
  const uint64_t needed = bytes + DeviceReserve(space.capacity);
  if (!error && space.available < needed) {
    return absl::FailedPreconditionError(
        fmt::format("the ssd rows need {:.1f} GiB, {} has {:.1f} GiB free; name another folder "
                    "with --ssd-folder",
                    static_cast<double>(needed) / (1 << 30), parent,
                    static_cast<double>(space.available) / (1 << 30)));
  }
  std::string path = parent + "/terrace-bench-XXXXXX";
  if (error || ::mkdtemp(path.data()) == nullptr) {
    return absl::FailedPreconditionError(fmt::format(
        "--ssd-folder: cannot use {}: {}", parent, error ? error.message() : std::strerror(errno)));
  }
  SsdFolder folder(path);
  if (IsMemory(path) || !HasDirectIo(path)) {
    return absl::FailedPreconditionError(
        fmt::format("no direct I/O in {}; name a folder on a disk with --ssd-folder", parent));
  }
  return folder;
}

SsdFolder::~SsdFolder() {
  std::error_code error;
  if (!path_.empty()) std::filesystem::remove_all(path_, error);
}

}  // namespace terrace::bench
