#include "cache_node/namespace_keeper.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "fmt/format.h"
#include "proto/checksum.h"
#include "proto/log.h"
#include "proto/status.h"
#include "storage/folder_identity.h"

namespace terrace {
namespace {

constexpr char kFile[] = "namespaces";
constexpr std::string_view kMagic("TRNS\1\0\0\0", 8);  // with the format
constexpr size_t kMagicBytes = 4;

uint32_t Checksum(std::string_view text) { return Crc32c(std::as_bytes(std::span(text))); }

std::string Encode(const control::v1::NamespaceRecords& records) {
  std::string text(kMagic);
  text += records.SerializeAsString();
  const uint32_t checksum = Checksum(text);
  text.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  return text;
}

absl::StatusOr<control::v1::NamespaceRecords> Decode(const std::string& text,
                                                     const std::string& path) {
  const std::string_view view(text);
  if (view.size() >= kMagic.size() &&
      view.substr(0, kMagicBytes) == kMagic.substr(0, kMagicBytes) &&
      view.substr(0, kMagic.size()) != kMagic) {
    return absl::FailedPreconditionError(
        fmt::format("ssd: {} has a later format than this build knows", path));
  }
  control::v1::NamespaceRecords records;
  uint32_t checksum = 0;
  const bool long_enough = view.size() >= kMagic.size() + sizeof(checksum);
  if (long_enough) {
    std::memcpy(&checksum, view.data() + view.size() - sizeof(checksum), sizeof(checksum));
  }
  if (!long_enough || !view.starts_with(kMagic) ||
      checksum != Checksum(view.substr(0, view.size() - sizeof(checksum))) ||
      !records.ParseFromArray(view.data() + kMagic.size(),
                              static_cast<int>(view.size() - kMagic.size() - sizeof(checksum)))) {
    return absl::DataLossError(fmt::format(
        "ssd: {} is broken; remove it to go on without the namespaces (and blocks) it knew", path));
  }
  return records;
}

// NotFound when there is none. One that cannot be read is not taken for none: what it knew would be
// written over.
absl::StatusOr<control::v1::NamespaceRecords> Read(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return absl::NotFoundError(path);
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file || !text) {
    return absl::UnavailableError(fmt::format("ssd: {} is there and cannot be read", path));
  }
  return Decode(text.str(), path);
}

}  // namespace

absl::StatusOr<control::v1::NamespaceRecords> NamespaceKeeper::LoadFromMemory() {
  const Descriptor file = memory_->Take(kFile);
  struct stat found {};
  if (!file) return absl::NotFoundError(kFile);
  if (fstat(file.get(), &found) != 0) return absl::DataLossError("kept namespaces");
  std::string text(static_cast<size_t>(found.st_size), '\0');
  if (pread(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return absl::DataLossError("kept namespaces");
  }
  // Kept on: the next process may need them before any changes.
  TERRACE_RETURN_IF_ERROR(memory_->Keep(kFile, file));
  return Decode(text, "memory");
}

// A new file each time, so that the old one is whole until it is replaced.
absl::Status NamespaceKeeper::SaveToMemory(const std::string& text) {
  const Descriptor file(memfd_create("terrace-namespaces", MFD_CLOEXEC));
  if (!file ||
      pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return absl::ResourceExhaustedError(
        fmt::format("shared memory for namespaces: {}", std::strerror(errno)));
  }
  return memory_->Keep(kFile, file);
}

absl::StatusOr<control::v1::NamespaceRecords> NamespaceKeeper::Load() {
  std::optional<control::v1::NamespaceRecords> latest;
  absl::Status first_error;
  if (memory_ != nullptr) {
    auto records = LoadFromMemory();
    if (records.ok()) latest = *std::move(records);
    // Blocks of namespaces that nobody knows are dropped.
    if (!records.ok() && !absl::IsNotFound(records.status())) {
      Log(LogLevel::kError, "node", "{}", records.status().ToString());
    }
  }
  for (const std::string& folder : folders_) {
    const std::string path = folder + "/" + kFile;
    auto records = Read(path);
    if (absl::IsNotFound(records.status())) continue;
    if (!records.ok()) {
      Log(LogLevel::kError, "ssd", "{}", records.status().ToString());
      first_error.Update(records.status());
    } else if (!latest || records->serial() > latest->serial()) {
      latest = *std::move(records);
    }
  }
  if (!latest && !first_error.ok()) return first_error;
  if (!latest) return control::v1::NamespaceRecords();
  MutexLock lock(&mutex_);
  serial_ = latest->serial();
  return *std::move(latest);
}

absl::Status NamespaceKeeper::Save(control::v1::NamespaceRecords records) {
  MutexLock lock(&mutex_);
  records.set_serial(++serial_);
  const std::string text = Encode(records);
  if (memory_ != nullptr) return SaveToMemory(text);
  absl::Status first_error;
  bool any = false;
  for (const std::string& folder : folders_) {
    const absl::Status saved = ReplaceFile(folder, kFile, text);
    if (!saved.ok()) Log(LogLevel::kError, "ssd", "{}", saved.ToString());
    any |= saved.ok();
    first_error.Update(saved);
  }
  return any ? absl::OkStatus() : first_error;
}

}  // namespace terrace
