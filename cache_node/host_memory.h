// The memory of the host tier: one stretch, taken and touched at start, so that no request pays
// for a first touch and nothing is promised that the machine does not have.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/bytes.h"

namespace terrace {

// Told while memory is touched: bytes done, bytes in all. Called by several threads, one at a time.
using TouchProgress = std::function<void(uint64_t, uint64_t)>;

// Owns anonymous memory, 2 MiB aligned, on huge pages where the system grants them. Move-only.
class HostMemory {
 public:
  HostMemory() = default;
  HostMemory(HostMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  HostMemory& operator=(HostMemory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HostMemory();

  // Whether `size` bytes are there now. ResourceExhausted tells `what` is wanted, and what there
  // is: address space (RLIMIT_AS), the control group's limit or the machine's available memory.
  static absl::Status Check(uint64_t size, std::string_view what = "host_bytes is");
  // `size` is a positive multiple of 4 KiB. Blocks while the memory is touched, about 4 s per GiB
  // in a virtual machine. Errors of Check.
  static absl::StatusOr<HostMemory> Create(uint64_t size, const TouchProgress& progress);

  MutableByteSpan bytes() const { return bytes_; }

 private:
  explicit HostMemory(MutableByteSpan bytes) : bytes_(bytes) {}

  MutableByteSpan bytes_;
};

}  // namespace terrace
