#include "storage/folder_identity.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "proto/status.h"
#include "storage/disk_format.h"

namespace terrace {
namespace {

constexpr char kIdentityFile[] = "terrace-ssd";
constexpr char kLockFile[] = "lock";
constexpr std::string_view kFormat = "1";
constexpr uint64_t kMostExtentBytes = 1 << 30;

constexpr char kDamaged[] = "the file is damaged: empty the folder, or name another";

absl::Status FileError(std::string_view what, const std::string& path, int error) {
  const std::string message = fmt::format("ssd: {} {}: {}", what, path, std::strerror(error));
  if (error == EROFS) {
    return absl::PermissionDeniedError(
        message +
        "; mount it for writing (after an error fsck comes first), or name another folder");
  }
  if (error == EACCES || error == EPERM) {
    return absl::PermissionDeniedError(message + "; the node's user must own the folder");
  }
  if (error == ENOSPC || error == EDQUOT) {
    return absl::ResourceExhaustedError(message + "; make room there, or name another folder");
  }
  if (error == ENOTDIR || error == EEXIST) {
    return absl::FailedPreconditionError(message + "; name a folder, or a path where one can be");
  }
  return absl::FailedPreconditionError(message + "; name another folder, or mend this one");
}

absl::Status InUse(const std::string& folder) {
  return absl::FailedPreconditionError(fmt::format(
      "ssd: {} is in use by another process: stop that, or name another folder", folder));
}

absl::Status CheckEmpty(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name == kLockFile || name == "lost+found" || name == std::string(kIdentityFile) + ".new") {
      continue;
    }
    return absl::FailedPreconditionError(fmt::format(
        "ssd: {} is not empty and no ssd folder of Terrace: it holds {}; name an empty folder, or "
        "one that is not there yet",
        folder, name));
  }
  if (error) return FileError("listing", folder, error.value());
  return absl::OkStatus();
}

bool IsName(std::string_view text) {
  return !text.empty() && text.find_first_of(" \n") == std::string_view::npos;
}

// The identity that the folder has, and which must be that of `wanted`'s node; nothing when the
// folder is empty.
absl::StatusOr<std::optional<FolderIdentity>> ReadIdentity(const std::string& folder,
                                                           const FolderIdentity& wanted) {
  if (!IsName(wanted.cluster) || !IsName(wanted.node)) {
    return absl::InvalidArgumentError(fmt::format(
        "ssd: the names of cluster and node must be single words, not '{}' and '{}': rename the "
        "node",
        wanted.cluster, wanted.node));
  }
  const std::string path = folder + "/" + kIdentityFile;
  std::ifstream file(path);
  if (!file) {
    if (::access(path.c_str(), R_OK) != 0 && errno != ENOENT) {
      return FileError("opening", path, errno);
    }
    TERRACE_RETURN_IF_ERROR(CheckEmpty(folder));
    return std::nullopt;
  }
  std::stringstream text;
  text << file.rdbuf();
  absl::StatusOr<FolderIdentity> found = ParseIdentity(text.str());
  if (!found.ok()) {
    return absl::Status(found.status().code(),
                        fmt::format("ssd: {}: {}", path, std::string(found.status().message())));
  }
  if (found->cluster != wanted.cluster || found->node != wanted.node) {
    return absl::FailedPreconditionError(
        fmt::format("ssd: {} belongs to node {} of cluster {}, not to node {} of cluster {}: start "
                    "that node (--node-id {}), or empty the folder",
                    folder, found->node, found->cluster, wanted.node, wanted.cluster, found->node));
  }
  return *std::move(found);
}

}  // namespace

absl::Status ReplaceFile(const std::string& folder, const std::string& name,
                         const std::string& text) {
  const std::string path = folder + "/" + name, beside = path + ".new";
  const int fd = ::open(beside.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) return FileError("writing", beside, errno);
  const ssize_t written = ::write(fd, text.data(), text.size());
  int error = written < 0 ? errno : written == static_cast<ssize_t>(text.size()) ? 0 : ENOSPC;
  if (error == 0 && ::fsync(fd) != 0) error = errno;
  ::close(fd);
  if (error == 0 && ::rename(beside.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) return FileError("writing", path, error);
  const int top = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (top < 0) return FileError("opening", folder, errno);
  error = ::fsync(top) == 0 ? 0 : errno;
  ::close(top);
  return error == 0 ? absl::OkStatus() : FileError("syncing", folder, error);
}

std::string FormatIdentity(const FolderIdentity& identity) {
  return fmt::format("format {}\ncluster {}\nnode {}\nfolder {:016x}\nextent-bytes {}\n", kFormat,
                     identity.cluster, identity.node, identity.folder_id, identity.extent_bytes);
}

absl::StatusOr<FolderIdentity> ParseIdentity(std::string_view text) {
  constexpr std::string_view kNames[] = {"format", "cluster", "node", "folder", "extent-bytes"};
  std::vector<std::string_view> values;
  for (const std::string_view name : kNames) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos || !text.starts_with(name) || text[name.size()] != ' ') {
      return absl::DataLossError(fmt::format("the line '{} ...' is missing; {}", name, kDamaged));
    }
    values.push_back(text.substr(name.size() + 1, end - name.size() - 1));
    if (name == "format" && values[0] != kFormat) {
      return absl::FailedPreconditionError(
          fmt::format("it is of format {}, this build knows {}: start the build that wrote it, or "
                      "name an empty folder",
                      values[0], kFormat));
    }
    text.remove_prefix(end + 1);
  }
  FolderIdentity identity{std::string(values[1]), std::string(values[2])};
  const auto number = [](std::string_view digits, int base, uint64_t* value) {
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, *value, base);
    return error == std::errc() && stop == end;
  };
  if (!text.empty() || !IsName(identity.cluster) || !IsName(identity.node) ||
      !number(values[3], 16, &identity.folder_id) ||
      !number(values[4], 10, &identity.extent_bytes) || identity.extent_bytes < 2 * kPageBytes ||
      identity.extent_bytes % kPageBytes != 0 || identity.extent_bytes > kMostExtentBytes) {
    return absl::DataLossError(fmt::format("a value is not understood; {}", kDamaged));
  }
  return identity;
}

absl::StatusOr<FolderLock> FolderLock::Take(const std::string& folder) {
  std::error_code error;
  // What is in it is the tenants': nobody else looks into a folder that is made here.
  const bool made = std::filesystem::create_directories(folder, error);
  if (made) std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
  if (error) return FileError("making", folder, error.value());
  // Nothing is put into what is somebody else's.
  if (!std::filesystem::exists(folder + "/" + kIdentityFile, error)) {
    TERRACE_RETURN_IF_ERROR(CheckEmpty(folder));
  }
  const std::string path = folder + "/" + kLockFile;
  const int fd = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return FileError("opening", path, errno);
  FolderLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return FileError("locking", path, errno);
  return InUse(folder);
}

absl::Status LookAtFolder(const std::string& folder, const FolderIdentity& wanted) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path there = fs::absolute(folder, error);
  const bool exists = fs::exists(there, error);
  if (error) return FileError("making", folder, error.value());
  // Where it is absent, it is made in the nearest folder above that is there.
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, error)) return FileError("making", folder, ENOTDIR);
  if (exists) TERRACE_RETURN_IF_ERROR(ReadIdentity(folder, wanted).status());
  if (::access(there.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return exists ? FileError("opening", folder + "/" + kLockFile, errno)
                : FileError("making", folder, errno);
}

absl::Status LookAtLock(const std::string& folder) {
  const int fd = ::open((folder + "/" + kLockFile).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::OkStatus();  // LookAtFolder says what is wrong, if anything
  const bool held = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return held ? InUse(folder) : absl::OkStatus();
}

FolderLock::FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

absl::StatusOr<FolderIdentity> ClaimFolder(const std::string& folder,
                                           const FolderIdentity& wanted) {
  TERRACE_ASSIGN_OR_RETURN(const std::optional<FolderIdentity> found, ReadIdentity(folder, wanted));
  if (found) return *found;
  TERRACE_RETURN_IF_ERROR(ReplaceFile(folder, kIdentityFile, FormatIdentity(wanted)));
  return wanted;
}

}  // namespace terrace
