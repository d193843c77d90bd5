// The deterministic twin of the disk: files in memory that fail on command. What a write changed
// counts as unsynced until a data sync of its file, and a power cut keeps any part of it.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/mutex.h"
#include "storage/file_io.h"

namespace terrace {

// What happens to one request.
struct IoFault {
  enum Kind : uint8_t {
    kNone,
    kError,  // fails with `error`, having done nothing
    kShort,  // moves the first `bytes` and says so
    kTorn,   // a write: moves the first `bytes`, says all; a read: the rest arrives as zeros
    kFlip,   // bit number `bit` of what is moved is wrong
    kHold,   // completes only after Release: a slow or hung device
  };
  Kind kind = kNone;
  int error = 0;
  uint64_t bytes = 0;
  uint64_t bit = 0;
};

// Thread-safe.
class FaultyFileIo : public FileIo {
 public:
  FaultyFileIo();
  ~FaultyFileIo() override;  // releases what is held

  // Asked once per request, on the thread that serves them; empty: no faults.
  void SetScript(std::function<IoFault(const IoRequest&)> script);
  // Bytes that files may take in all; opening beyond it is a full disk.
  void SetCapacity(uint64_t bytes);
  // As if there were a page cache: only what direct() says.
  void SetDirect(bool direct) { direct_ = direct; }
  // Waits until `count` requests are held; false after ten seconds without.
  bool WaitForHeld(size_t count);
  void Release();

  // The disk after a power cut now: each 4 KiB page changed since the last sync of its file holds
  // either its old or its new bytes, as `seed` draws. Requests held did not happen.
  std::unique_ptr<FaultyFileIo> PowerCut(uint64_t seed);
  void FlipBit(const std::string& path, uint64_t bit);
  void SwapPages(const std::string& path_a, uint64_t page_a, const std::string& path_b,
                 uint64_t page_b);
  uint64_t bytes_written() const;

  absl::StatusOr<uint64_t> FileBytes(const std::string& path) override;
  absl::StatusOr<int> Open(const std::string& path, uint64_t bytes) override;
  void Close(int file) override;
  absl::Status Remove(const std::string& path) override;
  void Submit(std::span<IoRequest* const> requests) override;
  bool direct() const override { return direct_; }
  bool WaitIdle(absl::Duration timeout) override;

 private:
  using Page = std::array<std::byte, kIoAlignment>;
  struct File {
    uint64_t bytes = 0;
    absl::flat_hash_map<uint64_t, std::unique_ptr<Page>> pages;  // absent: zeros
    std::map<uint64_t, Page> before;  // synced contents of pages changed since
  };

  void Serve();
  // Does the request and returns its result.
  int64_t Execute(const IoRequest& request, const IoFault& fault)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MovePage(const IoRequest& request, File* file, uint64_t page, std::byte* memory)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Page* PageOf(File* file, uint64_t page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::string, File> files_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> open_ ABSL_GUARDED_BY(mutex_);  // by number
  std::function<IoFault(const IoRequest&)> script_ ABSL_GUARDED_BY(mutex_);
  std::deque<IoRequest*> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<IoRequest*> held_ ABSL_GUARDED_BY(mutex_);
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t capacity_ ABSL_GUARDED_BY(mutex_) = UINT64_MAX;
  std::atomic<bool> direct_ = true;
  uint64_t bytes_written_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace
