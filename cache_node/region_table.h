// Which region lies where in the host tier, and in whose file: what a process must know to find
// blocks by their envelopes that an earlier one has left. A small file of shared memory, written as
// regions are cut, good at any instant at which its writer may be killed. Format 1, little-endian,
// of the machine that runs it:
//
//   offset   size  field
//        0      8  magic "TRRT", format (4 bytes)
//        8     16  bytes of the host tier, bytes of a chunk
//       24      4  CRC32C of all before it
//     4096  16384  the tenant of each file, 4 bytes; 0: of none
//    20480   24*n  of each chunk: the file that it lies in (4 bytes); if a region begins there, its
//                  chunks, place bytes, side bytes, tenant (16 bytes) and their CRC32C (4 bytes)
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/descriptor.h"
#include "storage/arena.h"

namespace terrace {

struct HostRegion {
  uint32_t first_chunk = 0, chunks = 0;
  PlaceClass size;
};

// Thread-compatible. Move-only.
class RegionTable {
 public:
  static constexpr uint32_t kMostFiles = 4096;

  RegionTable() = default;
  RegionTable(RegionTable&& other) noexcept { *this = std::move(other); }
  RegionTable& operator=(RegionTable&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(memory_, other.memory_);
    std::swap(chunks_, other.chunks_);
    return *this;
  }
  ~RegionTable();

  // Without regions; all chunks lie in file 0, which belongs to nobody. ResourceExhausted.
  static absl::StatusOr<RegionTable> Create(uint64_t bytes, uint64_t chunk_bytes);
  // That of an earlier process. FailedPrecondition: of another format, or of other sizes.
  static absl::StatusOr<RegionTable> Open(Descriptor file, uint64_t bytes, uint64_t chunk_bytes);

  const Descriptor& file() const { return file_; }
  uint32_t chunks() const { return chunks_; }

  // Of a file; 0: of nobody.
  uint32_t tenant(uint32_t file) const;
  void SetTenant(uint32_t file, uint32_t tenant);
  uint32_t file_of(uint32_t chunk) const;
  void SetFile(uint32_t first_chunk, uint32_t chunks, uint32_t file);

  // While a region is made none is known in its chunks: Clear comes before anything is changed in
  // them, Set after all of it.
  void Clear(uint32_t first_chunk, uint32_t chunks);
  void Set(const HostRegion& region);
  // In order, none overlapping another. Some may be long empty: nobody tells when one ends.
  std::vector<HostRegion> Regions() const;

 private:
  struct Chunk;

  absl::Status Map(uint64_t bytes);
  Chunk* chunk(uint32_t i) const;
  uint32_t* tenants() const;

  Descriptor file_;
  std::byte* memory_ = nullptr;
  uint32_t chunks_ = 0;
};

}  // namespace terrace
