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

#include "absl/status/statusor.h"
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
    std::swap(file_of_, other.file_of_);
    return *this;
  }
  ~HostMemory();

  // Whether `size` bytes are there now. ResourceExhausted tells `what` is wanted, and what there
  // is: address space (RLIMIT_AS), the control group's limit or the machine's available memory.
  static absl::Status Check(uint64_t size, std::string_view what = "host_bytes is");
  // `size` is a positive multiple of `chunk_bytes`, and that of 4 KiB. Blocks while the memory is
  // touched, about 4 s per GiB in a virtual machine. Errors of Check.
  static absl::StatusOr<HostMemory> Create(uint64_t size, uint64_t chunk_bytes,
                                           const TouchProgress& progress);

  MutableByteSpan bytes() const { return bytes_; }

  // From here on the chunks of [offset, offset + bytes) belong to `tenant`; those that did not are
  // zeros. Nobody reads or writes them meanwhile. The tenant that is named first has got all that
  // was touched at start. ResourceExhausted when the kernel has no room for one more mapping
  // (vm.max_map_count) or file; then some may have changed hands.
  absl::Status Give(uint64_t offset, uint64_t bytes, uint32_t tenant);

  // The tenant's file, of size bytes().size(), for reading only. Unavailable where /proc is not
  // mounted, ResourceExhausted without descriptors.
  absl::StatusOr<Descriptor> OpenForReading(uint32_t tenant);

 private:
  struct File {
    uint32_t tenant = 0;
    bool taken = false;  // by `tenant`
    Descriptor fd;
  };

  absl::StatusOr<size_t> FileOf(uint32_t tenant);
  absl::Status AddFile();
  absl::Status Map(uint64_t offset, uint64_t bytes, int fd);

  MutableByteSpan bytes_;
  uint64_t chunk_bytes_ = 0;
  std::vector<File> files_;
  std::vector<uint32_t> file_of_;  // by chunk: in files_
};

}  // namespace terrace
