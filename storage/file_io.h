// Files of fixed size, read and written past the page cache, many requests at a time. The twin
// that fails on command is storage/faulty_file_io.h.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/bytes.h"

namespace terrace {

// Offsets, lengths and addresses of requests are multiples of this.
constexpr uint64_t kIoAlignment = 4096;

enum class IoKind : uint8_t { kRead, kWrite, kDataSync };

// One request, owned by whoever submits it; it and the memory that it names stay untouched from
// Submit until Complete.
class IoRequest {
 public:
  virtual ~IoRequest() = default;
  // Called once, on a thread of the FileIo, when the kernel has let go of the memory. `result` is
  // what the system call said: bytes moved (perhaps fewer than asked for), or -errno. It must not
  // wait for I/O of the same FileIo, and may destroy the request.
  virtual void Complete(int64_t result) = 0;

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const iovec& piece : pieces()) sum += piece.iov_len;
    return sum;
  }
  std::span<const iovec> pieces() const { return {pieces_.data(), piece_count_}; }
  void AddPiece(MutableByteSpan memory) {
    pieces_[piece_count_++] = {memory.data(), memory.size()};
  }
  // For writes: the memory is only read.
  void AddPiece(ByteSpan memory) {
    AddPiece(MutableByteSpan(const_cast<std::byte*>(memory.data()), memory.size()));
  }
  // Drops the first `count` bytes, which were moved already.
  void Advance(uint64_t count);

  IoKind kind = IoKind::kRead;
  int file = -1;
  uint64_t offset = 0;

 private:
  std::array<iovec, 3> pieces_{};
  size_t piece_count_ = 0;
};

// Thread-safe.
class FileIo {
 public:
  virtual ~FileIo() = default;  // after every request has completed and every file is closed

  // The size of the file, NotFound when there is none.
  virtual absl::StatusOr<uint64_t> FileBytes(const std::string& path) = 0;
  // Opens a file and returns a number for it. One that is absent or shorter is given `bytes` of
  // disk space first, and both survive a power cut. Blocks. ResourceExhausted when the disk is
  // full (nothing is left behind), Unavailable for other errors of the device.
  virtual absl::StatusOr<int> Open(const std::string& path, uint64_t bytes) = 0;
  virtual void Close(int file) = 0;  // no request for it in flight
  virtual absl::Status Remove(const std::string& path) = 0;

  // Starts all requests; they complete in any order. Does not wait for the device. Those beyond
  // `depth` in flight wait in a queue, first come first served.
  virtual void Submit(std::span<IoRequest* const> requests) = 0;
  // Whether all files so far are written past the page cache. Through it, a sync that fails loses
  // writes of which the next one, which succeeds, says nothing.
  virtual bool direct() const = 0;
  // Whether none is in flight; waits so long for it. The last may still be completing: the
  // destructor waits for that.
  virtual bool WaitIdle(absl::Duration timeout) = 0;
};

// The real one: io_uring, and O_DIRECT where the file system has it (else, with a warning, the
// page cache). One thread that waits for completions. Unavailable when the kernel refuses.
absl::StatusOr<std::unique_ptr<FileIo>> CreateFileIo(uint32_t depth);

}  // namespace terrace
