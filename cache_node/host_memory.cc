#include "cache_node/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "proto/log.h"
#include "proto/mutex.h"
#include "proto/status.h"

namespace terrace {
namespace {

constexpr uint64_t kAlignment = 2 << 20;
constexpr uint64_t kPageBytes = 4096;

absl::Status TooMuch(std::string_view what, uint64_t size, std::string_view limit,
                     uint64_t available) {
  return absl::ResourceExhaustedError(
      fmt::format("{} {} ({:.1f} GiB), but {} leaves only {} ({:.1f} GiB)", what, size,
                  static_cast<double>(size) / (1 << 30), limit, available,
                  static_cast<double>(available) / (1 << 30)));
}

// The number in a file that holds nothing else; none when there is no such file or it says "max".
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t value;
  if (!(file >> value)) return std::nullopt;
  return value;
}

// The number after `name` in a file of lines "name number".
std::optional<uint64_t> ReadField(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, name.size(), name) == 0) {
      return std::strtoull(line.c_str() + name.size(), nullptr, 10);
    }
  }
  return std::nullopt;
}

struct CgroupFiles {
  std::string limit, usage, inactive;  // inactive: page cache that the kernel gives back
};
constexpr std::string_view kCgroupRoot = "/sys/fs/cgroup";

// What one control group leaves; none when it sets no limit.
std::optional<uint64_t> CgroupHeadroom(const std::string& folder, const CgroupFiles& files) {
  const auto limit = ReadNumber(folder + files.limit);
  const auto usage = ReadNumber(folder + files.usage);
  if (!limit || !usage) return std::nullopt;
  const uint64_t cache = ReadField(folder + "/memory.stat", files.inactive).value_or(0);
  const uint64_t used = *usage - std::min(*usage, cache);
  return *limit - std::min(*limit, used);
}

// The least that the process's control group and those above it leave.
std::optional<uint64_t> CgroupHeadroom() {
  const CgroupFiles v2{"/memory.max", "/memory.current", "inactive_file "};
  const CgroupFiles v1{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file "};
  std::optional<uint64_t> least;
  std::ifstream file("/proc/self/cgroup");  // lines "hierarchy:controllers:path"
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers != "memory") continue;
    const CgroupFiles& files = controllers.empty() ? v2 : v1;
    const std::string root = std::string(kCgroupRoot) + (controllers.empty() ? "" : "/memory");
    // In a container the path may be the host's and absent here; the root is the container's own.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      const auto headroom = CgroupHeadroom(root + path, files);
      if (headroom) least = std::min(least.value_or(*headroom), *headroom);
      if (path.find('/') == std::string::npos) break;
    }
  }
  return least;
}

}  // namespace

absl::Status HostMemory::Check(uint64_t size, std::string_view what) {
  rlimit address_space{};
  if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    const uint64_t used = ReadNumber("/proc/self/statm").value_or(0) * kPageBytes;
    const uint64_t left = address_space.rlim_cur - std::min<uint64_t>(address_space.rlim_cur, used);
    if (size + kAlignment > left) return TooMuch(what, size, "the limit of address space", left);
  }
  if (const auto left = CgroupHeadroom(); left && size > *left) {
    return TooMuch(what, size, "the control group's memory limit", *left);
  }
  const auto available_kib = ReadField("/proc/meminfo", "MemAvailable:");
  if (available_kib && size > *available_kib * 1024) {
    return TooMuch(what, size, "the machine's memory", *available_kib * 1024);
  }
  return absl::OkStatus();
}

namespace {

// Writes to each page, in parallel: the kernel zeroes pages on first touch, and slowly.
void Touch(MutableByteSpan bytes, const TouchProgress& progress) {
  constexpr uint64_t kPiece = 64 << 20;
  std::atomic<uint64_t> next{0};
  Mutex mutex;
  uint64_t done = 0;  // guarded by mutex
  const auto work = [&] {
    for (uint64_t begin; (begin = next.fetch_add(kPiece)) < bytes.size();) {
      const MutableByteSpan piece = bytes.subspan(begin, std::min(kPiece, bytes.size() - begin));
      for (uint64_t i = 0; i < piece.size(); i += kPageBytes) {
        *const_cast<volatile std::byte*>(&piece[i]) = std::byte{0};
      }
      MutexLock lock(&mutex);
      done += piece.size();
      if (progress) progress(done, bytes.size());
    }
  };
  const uint64_t pieces = (bytes.size() + kPiece - 1) / kPiece;
  const uint64_t threads = std::min<uint64_t>({std::thread::hardware_concurrency(), pieces, 16});
  std::vector<std::thread> helpers;
  for (uint64_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
}

constexpr char kNamePrefix[] = "host-";
constexpr char kTableName[] = "host-regions";
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::string FileName(size_t number) { return fmt::format("host-memory-{}", number); }

void KeepOrWarn(DescriptorStore* keep, const std::string& name, const Descriptor& file) {
  const absl::Status kept = keep->Keep(name, file);
  if (kept.ok()) return;
  Log(LogLevel::kWarning, "store", "memory is lost if this process dies: {}: {}", name,
      kept.ToString());
}

// A file that could become shorter would kill whoever reads it.
bool HoldsSize(const Descriptor& file, uint64_t size) {
  struct stat found {};
  return fstat(file.get(), &found) == 0 && static_cast<uint64_t>(found.st_size) == size &&
         (fcntl(file.get(), F_GET_SEALS) & kSeals) == kSeals;
}

bool IsReferenced(const RegionTable& table, uint32_t file) {
  for (uint32_t i = 0; i < table.chunks(); ++i) {
    if (table.file_of(i) == file) return true;
  }
  return false;
}

void Punch(const Descriptor& file, uint64_t at, uint64_t bytes) {
  fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
            static_cast<off_t>(bytes));
}

}  // namespace

absl::Status HostMemory::Reserve(uint64_t size, uint64_t chunk_bytes, DescriptorStore* keep) {
  const uint64_t mapped = size + kAlignment;
  void* raw = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        fmt::format("host_bytes is {}: mmap failed: {}", size, std::strerror(errno)));
  }
  // Cut the ends off so that what is left is aligned.
  auto* begin = static_cast<std::byte*>(raw);
  const uint64_t front =
      (kAlignment - reinterpret_cast<uintptr_t>(begin) % kAlignment) % kAlignment;
  if (front > 0) munmap(begin, front);
  munmap(begin + front + size, kAlignment - front);
  bytes_ = MutableByteSpan(begin + front, size);
  chunk_bytes_ = chunk_bytes;
  keep_ = keep;
  return absl::OkStatus();
}

absl::StatusOr<HostMemory> HostMemory::Create(uint64_t size, uint64_t chunk_bytes,
                                              const TouchProgress& progress,
                                              DescriptorStore* keep) {
  // What an earlier process had may be most of the memory that there is.
  if (keep != nullptr) TERRACE_RETURN_IF_ERROR(keep->DropAll(kNamePrefix));
  TERRACE_RETURN_IF_ERROR(Check(size));
  HostMemory memory;
  TERRACE_RETURN_IF_ERROR(memory.Reserve(size, chunk_bytes, keep));
  TERRACE_ASSIGN_OR_RETURN(memory.table_, RegionTable::Create(size, chunk_bytes));
  TERRACE_RETURN_IF_ERROR(memory.AddFile());
  TERRACE_RETURN_IF_ERROR(memory.Map(0, size, memory.files_[0].get()));
  Touch(memory.bytes(), progress);
  // Last: what is kept is whole.
  if (keep != nullptr) KeepOrWarn(keep, kTableName, memory.table_.file());
  return memory;
}

absl::StatusOr<HostMemory> HostMemory::Adopt(uint64_t size, uint64_t chunk_bytes,
                                             DescriptorStore* keep,
                                             absl::FunctionRef<bool(uint32_t)> lives) {
  Descriptor table = keep->Take(kTableName);
  if (!table) return absl::NotFoundError("no memory was kept");
  HostMemory memory;
  TERRACE_ASSIGN_OR_RETURN(memory.table_, RegionTable::Open(std::move(table), size, chunk_bytes));
  TERRACE_RETURN_IF_ERROR(memory.Reserve(size, chunk_bytes, keep));
  TERRACE_RETURN_IF_ERROR(memory.AdoptFiles(lives));
  TERRACE_RETURN_IF_ERROR(memory.MapAll());
  return memory;
}

// A file that is not there or belongs to nobody any more makes room for an empty one: who has it
// open may never see what comes after.
absl::Status HostMemory::AdoptFiles(absl::FunctionRef<bool(uint32_t)> lives) {
  for (uint32_t i = 0; i < RegionTable::kMostFiles; ++i) {
    const uint32_t tenant = table_.tenant(i);
    if (i > 0 && tenant == 0 && !IsReferenced(table_, i)) break;
    Descriptor file = keep_->Take(FileName(i));
    if (!file || !HoldsSize(file, bytes_.size()) || tenant == 0 || !lives(tenant)) {
      table_.SetTenant(i, 0);
      TERRACE_ASSIGN_OR_RETURN(file, NewFile(i));
    }
    files_.push_back(std::move(file));
  }
  return absl::OkStatus();
}

// Each chunk from its file; what other files have in its place, if a chunk was changing hands, is
// given back.
absl::Status HostMemory::MapAll() {
  for (uint32_t first = 0; first < table_.chunks();) {
    const uint32_t file = table_.file_of(first);
    uint32_t end = first + 1;
    while (end < table_.chunks() && table_.file_of(end) == file) ++end;
    if (file >= files_.size()) return absl::FailedPreconditionError("its table is broken");
    const uint64_t at = first * chunk_bytes_, length = (end - first) * chunk_bytes_;
    TERRACE_RETURN_IF_ERROR(Map(at, length, files_[file].get()));
    for (size_t other = 0; other < files_.size(); ++other) {
      if (other != file) Punch(files_[other], at, length);
    }
    first = end;
  }
  return absl::OkStatus();
}

HostMemory::~HostMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

// Nobody can make it shorter or longer, whatever descriptor he has: that would kill who reads it.
absl::StatusOr<Descriptor> HostMemory::NewFile(size_t number) {
  Descriptor fd(memfd_create("terrace-host-tier", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes_.size())) != 0 ||
      fchmod(fd.get(), S_IRUSR) != 0 || fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return absl::ResourceExhaustedError(
        fmt::format("shared memory for the host tier: {}", std::strerror(errno)));
  }
  if (keep_ != nullptr) KeepOrWarn(keep_, FileName(number), fd);
  return fd;
}

absl::Status HostMemory::AddFile() {
  if (files_.size() == RegionTable::kMostFiles) {
    return absl::ResourceExhaustedError(
        fmt::format("{} tenants have memory already", RegionTable::kMostFiles));
  }
  TERRACE_ASSIGN_OR_RETURN(Descriptor file, NewFile(files_.size()));
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status HostMemory::Map(uint64_t offset, uint64_t bytes, int fd) {
  std::byte* const at = bytes_.data() + offset;
  if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
           static_cast<off_t>(offset)) == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        fmt::format("mapping {} bytes of shared memory: {}", bytes, std::strerror(errno)));
  }
  madvise(at, bytes, MADV_HUGEPAGE);  // a wish: without it pages are small
  madvise(at, bytes, MADV_DONTDUMP);  // a core file of it would take minutes, and the disk
  return absl::OkStatus();
}

absl::StatusOr<size_t> HostMemory::FileOf(uint32_t tenant) {
  size_t unused = files_.size();
  for (size_t i = 0; i < files_.size(); ++i) {
    if (table_.tenant(i) == tenant) return i;
    if (table_.tenant(i) == 0) unused = i;
  }
  if (unused == files_.size()) TERRACE_RETURN_IF_ERROR(AddFile());
  table_.SetTenant(unused, tenant);
  return unused;
}

absl::Status HostMemory::Give(uint64_t offset, uint64_t bytes, uint32_t tenant) {
  TERRACE_ASSIGN_OR_RETURN(const size_t to, FileOf(tenant));
  const auto end = static_cast<uint32_t>((offset + bytes + chunk_bytes_ - 1) / chunk_bytes_);
  for (auto first = static_cast<uint32_t>(offset / chunk_bytes_); first < end;) {
    const uint32_t from = table_.file_of(first);
    uint32_t last = first + 1;
    while (last < end && table_.file_of(last) == from) ++last;
    if (from != to) {
      const uint64_t at = first * chunk_bytes_, length = (last - first) * chunk_bytes_;
      TERRACE_RETURN_IF_ERROR(Map(at, length, files_[to].get()));
      table_.SetFile(first, last - first, static_cast<uint32_t>(to));
      Punch(files_[from], at, length);
    }
    first = last;
  }
  return absl::OkStatus();
}

absl::Status HostMemory::BeginRegion(const HostRegion& region, uint64_t side_bytes) {
  const uint64_t offset = region.first_chunk * chunk_bytes_;
  table_.Clear(region.first_chunk, region.chunks);
  TERRACE_RETURN_IF_ERROR(Give(offset, region.chunks * chunk_bytes_, region.size.tenant));
  std::ranges::fill(bytes_.subspan(offset, side_bytes), std::byte{0});
  table_.Set(region);
  return absl::OkStatus();
}

std::vector<HostRegion> HostMemory::Regions() const {
  std::vector<HostRegion> regions = table_.Regions();
  std::erase_if(regions, [this](const HostRegion& region) {
    for (uint32_t i = 0; i < region.chunks; ++i) {
      if (table_.tenant(table_.file_of(region.first_chunk + i)) != region.size.tenant) return true;
    }
    return false;
  });
  return regions;
}

absl::StatusOr<Descriptor> HostMemory::OpenForReading(uint32_t tenant) {
  TERRACE_ASSIGN_OR_RETURN(const size_t file, FileOf(tenant));
  // A descriptor that was duplicated could be written through; one that is opened anew cannot.
  const std::string path = fmt::format("/proc/self/fd/{}", files_[file].get());
  Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd) return fd;
  const bool exhausted = errno == EMFILE || errno == ENFILE;
  return absl::Status(
      exhausted ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable,
      fmt::format("{}: {}", path, std::strerror(errno)));
}

}  // namespace terrace
