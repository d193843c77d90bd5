#include "cache_node/region_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <span>

#include "fmt/format.h"
#include "proto/checksum.h"
#include "proto/status.h"

namespace terrace {
namespace {

constexpr uint64_t kTenantsAt = 4096;
constexpr uint64_t kChunksAt = kTenantsAt + RegionTable::kMostFiles * sizeof(uint32_t);

struct Header {
  char magic[4] = {'T', 'R', 'R', 'T'};
  uint32_t format = 1;
  uint64_t bytes = 0, chunk_bytes = 0;
  uint32_t checksum = 0;
};

uint32_t Checksum(const Header& header) {
  return Crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, checksum)));
}

}  // namespace

struct RegionTable::Chunk {
  uint32_t file, chunks, place_bytes, side_bytes, tenant, checksum;

  uint32_t Checksum() const {
    const uint32_t fields[] = {chunks, place_bytes, side_bytes, tenant};
    return Crc32c(std::as_bytes(std::span(fields)));
  }
};

RegionTable::~RegionTable() {
  if (memory_ != nullptr) munmap(memory_, kChunksAt + chunks_ * sizeof(Chunk));
}

RegionTable::Chunk* RegionTable::chunk(uint32_t i) const {
  return reinterpret_cast<Chunk*>(memory_ + kChunksAt) + i;
}

uint32_t* RegionTable::tenants() const { return reinterpret_cast<uint32_t*>(memory_ + kTenantsAt); }

absl::Status RegionTable::Map(uint64_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (at == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        fmt::format("mapping the table of regions: {}", std::strerror(errno)));
  }
  memory_ = static_cast<std::byte*>(at);
  return absl::OkStatus();
}

absl::StatusOr<RegionTable> RegionTable::Create(uint64_t bytes, uint64_t chunk_bytes) {
  RegionTable table;
  table.chunks_ = static_cast<uint32_t>(bytes / chunk_bytes);
  const uint64_t size = kChunksAt + table.chunks_ * sizeof(Chunk);
  table.file_ = Descriptor(memfd_create("terrace-regions", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!table.file_ || ftruncate(table.file_.get(), static_cast<off_t>(size)) != 0 ||
      fcntl(table.file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return absl::ResourceExhaustedError(
        fmt::format("shared memory for the table of regions: {}", std::strerror(errno)));
  }
  TERRACE_RETURN_IF_ERROR(table.Map(size));
  Header header{.bytes = bytes, .chunk_bytes = chunk_bytes};
  header.checksum = Checksum(header);
  std::memcpy(table.memory_, &header, sizeof(header));
  return table;
}

absl::StatusOr<RegionTable> RegionTable::Open(Descriptor file, uint64_t bytes,
                                              uint64_t chunk_bytes) {
  RegionTable table;
  table.file_ = std::move(file);
  table.chunks_ = static_cast<uint32_t>(bytes / chunk_bytes);
  const uint64_t size = kChunksAt + table.chunks_ * sizeof(Chunk);
  struct stat found {};
  if (fstat(table.file_.get(), &found) != 0 || static_cast<uint64_t>(found.st_size) != size) {
    return absl::FailedPreconditionError("its table of regions is of another size");
  }
  TERRACE_RETURN_IF_ERROR(table.Map(size));
  Header header, wanted{.bytes = bytes, .chunk_bytes = chunk_bytes};
  std::memcpy(&header, table.memory_, sizeof(header));
  wanted.checksum = Checksum(wanted);
  if (std::memcmp(&header, &wanted, offsetof(Header, checksum)) != 0 ||
      header.checksum != wanted.checksum) {
    return absl::FailedPreconditionError("it is of another format or of other sizes");
  }
  return table;
}

uint32_t RegionTable::tenant(uint32_t file) const { return tenants()[file]; }

void RegionTable::SetTenant(uint32_t file, uint32_t tenant) { tenants()[file] = tenant; }

uint32_t RegionTable::file_of(uint32_t chunk_index) const { return chunk(chunk_index)->file; }

void RegionTable::SetFile(uint32_t first_chunk, uint32_t chunks, uint32_t file) {
  for (uint32_t i = 0; i < chunks; ++i) chunk(first_chunk + i)->file = file;
}

// Whoever is killed has written what came before in the program, if the compiler left it there.
void RegionTable::Clear(uint32_t first_chunk, uint32_t chunks) {
  for (uint32_t i = 0; i < chunks; ++i) chunk(first_chunk + i)->chunks = 0;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void RegionTable::Set(const HostRegion& region) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  Chunk& first = *chunk(region.first_chunk);
  first.chunks = region.chunks;
  first.place_bytes = region.size.place_bytes;
  first.side_bytes = region.size.side_bytes;
  first.tenant = region.size.tenant;
  first.checksum = first.Checksum();
}

std::vector<HostRegion> RegionTable::Regions() const {
  std::vector<HostRegion> regions;
  for (uint32_t i = 0; i < chunks_; ++i) {
    const Chunk& one = *chunk(i);
    if (one.chunks == 0 || one.checksum != one.Checksum()) continue;
    const PlaceClass size{one.place_bytes, one.side_bytes, one.tenant};
    const bool sane = one.chunks <= chunks_ - i && size.place_bytes > 0 &&
                      size.place_bytes % kPlaceAlignment == 0 &&
                      std::ranges::find(kSideSizes, size.side_bytes) != std::end(kSideSizes);
    if (!sane) continue;
    // The later one has its beginning within the earlier one, which had been given up by then.
    if (!regions.empty() && regions.back().first_chunk + regions.back().chunks > i) {
      regions.pop_back();
    }
    regions.push_back({i, one.chunks, size});
  }
  return regions;
}

}  // namespace terrace
