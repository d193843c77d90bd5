// The memory of the host tier: one stretch of addresses, taken and touched at start, so that no
// request pays for a first touch and nothing is promised that the machine does not have.
//
// It can be read by other processes, each tenant's part by that tenant alone: each chunk lies in
// the file (memfd) of the tenant that it belongs to, at the offset that it has in the stretch. A
// chunk that changes hands leaves the old tenant's file as a hole, which reads as zeros, and
// arrives in the new one's as zeros. Who may only read can hold up memory all the same: reading a
// hole fills it, for account of the reader's control group.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "cache_node/descriptor_store.h"
#include "cache_node/region_table.h"
#include "proto/bytes.h"
#include "proto/descriptor.h"

namespace terrace {

// Told while memory is touched: bytes done, bytes in all. Called by several threads, one at a time.
using TouchProgress = std::function<void(uint64_t, uint64_t)>;

// 2 MiB aligned, on huge pages where the system grants them to shared memory. Move-only.
// Thread-compatible, but for bytes() and what is in them.
class HostMemory {
 public:
  HostMemory() = default;
  HostMemory(HostMemory&& other) noexcept { *this = std::move(other); }
  HostMemory& operator=(HostMemory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(chunk_bytes_, other.chunk_bytes_);
    std::swap(files_, other.files_);
    std::swap(table_, other.table_);
    std::swap(keep_, other.keep_);
    return *this;
  }
  ~HostMemory();

  // Whether `size` bytes are there now. ResourceExhausted tells `what` is wanted, and what there
  // is: address space (RLIMIT_AS), the control group's limit or the machine's available memory.
  static absl::Status Check(uint64_t size, std::string_view what = "host_bytes is");
  // `size` is a positive multiple of `chunk_bytes`, and that of 4 KiB. Blocks while the memory is
  // touched, about 4 s per GiB in a virtual machine. Errors of Check. With `keep` (which outlives
  // this) it can be adopted after the end of the process; what could not be kept is logged, and
  // what an earlier process had is given up.
  static absl::StatusOr<HostMemory> Create(uint64_t size, uint64_t chunk_bytes,
                                           const TouchProgress& progress,
                                           DescriptorStore* keep = nullptr);
  // What an earlier process had, of those tenants that `lives` knows; the others' memory is given
  // back. NotFound: there is none; FailedPrecondition: of other sizes, or of another format. After
  // an error Create may follow.
  static absl::StatusOr<HostMemory> Adopt(uint64_t size, uint64_t chunk_bytes,
                                          DescriptorStore* keep,
                                          absl::FunctionRef<bool(uint32_t tenant)> lives);

  MutableByteSpan bytes() const { return bytes_; }

  // From here on the chunks of [offset, offset + bytes) belong to `tenant`; those that did not are
  // zeros. Nobody reads or writes them meanwhile. The tenant that is named first has got all that
  // was touched at start. ResourceExhausted when the kernel has no room for one more mapping
  // (vm.max_map_count) or file; then some may have changed hands.
  absl::Status Give(uint64_t offset, uint64_t bytes, uint32_t tenant);

  // Gives the region's chunks to its tenant, and zeroes its side records, which are the first
  // `side_bytes`. From here on Regions() has it. Errors of Give.
  absl::Status BeginRegion(const HostRegion& region, uint64_t side_bytes);
  // Those whose chunks lie in their tenant's file; RegionTable::Regions.
  std::vector<HostRegion> Regions() const;

  // The tenant's file, of size bytes().size(), for reading only. Unavailable where /proc is not
  // mounted, ResourceExhausted without descriptors.
  absl::StatusOr<Descriptor> OpenForReading(uint32_t tenant);

 private:
  absl::StatusOr<size_t> FileOf(uint32_t tenant);
  absl::Status Reserve(uint64_t size, uint64_t chunk_bytes, DescriptorStore* keep);
  absl::StatusOr<Descriptor> NewFile(size_t number);
  absl::Status AdoptFiles(absl::FunctionRef<bool(uint32_t)> lives);
  absl::Status MapAll();
  absl::Status AddFile();
  absl::Status Map(uint64_t offset, uint64_t bytes, int fd);

  MutableByteSpan bytes_;
  uint64_t chunk_bytes_ = 0;
  std::vector<Descriptor> files_;
  RegionTable table_;  // which tenant has which file, and what lies where
  DescriptorStore* keep_ = nullptr;
};

}  // namespace terrace
