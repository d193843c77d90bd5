#include "storage/file_io.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <span>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "fmt/format.h"
#include "proto/clock.h"
#include "proto/log.h"
#include "proto/mutex.h"
#include "proto/status.h"

namespace terrace {
namespace {

absl::Status ErrnoStatus(std::string_view what, const std::string& path, int error) {
  const std::string message = fmt::format("{} {}: {}", what, path, std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

// A new name survives a power cut only after its folder was synced.
absl::Status SyncFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus("opening", folder, errno);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  return error == 0 ? absl::OkStatus() : ErrnoStatus("syncing", folder, error);
}

// Handing a large request to the kernel takes as long as checking its bytes: whoever asks for one
// has others to serve, and the reaper has the next one to check, so that a thread does it. For a
// small one its wake-up would be the larger part.
constexpr uint64_t kLargeBytes = 256 << 10;
bool IsLarge(const IoRequest& request) { return request.bytes() >= kLargeBytes; }

class UringFileIo : public FileIo {
 public:
  explicit UringFileIo(uint32_t depth) : depth_(depth) {}
  ~UringFileIo() override;

  absl::Status Start();
  absl::StatusOr<uint64_t> FileBytes(const std::string& path) override;
  absl::StatusOr<int> Open(const std::string& path, uint64_t bytes) override;
  void Close(int file) override { ::close(file); }
  absl::Status Remove(const std::string& path) override;
  void Submit(std::span<IoRequest* const> requests) override;
  bool direct() const override { return direct_; }
  bool WaitIdle(absl::Duration timeout) override;

 private:
  using Requests = absl::InlinedVector<IoRequest*, 16>;
  static constexpr absl::Duration kPatience = absl::Minutes(1);

  // Those that wait, up to the depth, for whoever calls to start them. Empty where the first is
  // large: then the starter has been told.
  Requests TakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Requests TakeAllLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Start(std::span<IoRequest* const> requests);
  void StartLarge();
  void Reap();

  const uint32_t depth_;
  Mutex ring_mutex_;  // of the ring's submission side; its completion side is the reaper's alone
  io_uring ring_{};
  bool ring_ready_ = false;
  // The kernel orders the start of a request before its completion; this says so to those who look
  // at this process alone (ThreadSanitizer).
  std::atomic<uint64_t> started_{0};
  std::atomic<bool> direct_{true};
  std::thread starter_, reaper_;
  Mutex mutex_;  // never held together with ring_mutex_
  CondVar large_waits_, idle_;
  std::deque<IoRequest*> waiting_ ABSL_GUARDED_BY(mutex_);
  uint32_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::Status UringFileIo::Start() {
  // One entry more than requests in flight, for the one that ends the reaper.
  if (const int error = io_uring_queue_init(depth_ + 1, &ring_, 0); error < 0) {
    return absl::UnavailableError(
        fmt::format("io_uring is not to be had here: {}", std::strerror(-error)));
  }
  ring_ready_ = true;
  starter_ = std::thread([this] { StartLarge(); });
  reaper_ = std::thread([this] { Reap(); });
  return absl::OkStatus();
}

UringFileIo::~UringFileIo() {
  if (!ring_ready_) return;
  {
    MutexLock lock(&mutex_);
    if (in_flight_ != 0 || !waiting_.empty()) std::abort();
    ending_ = true;
    large_waits_.Signal();
  }
  starter_.join();
  {
    MutexLock lock(&ring_mutex_);
    io_uring_sqe* end = io_uring_get_sqe(&ring_);
    io_uring_prep_nop(end);
    io_uring_sqe_set_data(end, nullptr);
    io_uring_submit(&ring_);
  }
  reaper_.join();
  io_uring_queue_exit(&ring_);
}

absl::StatusOr<uint64_t> UringFileIo::FileBytes(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return ErrnoStatus("looking at", path, errno);
  return static_cast<uint64_t>(status.st_size);
}

absl::StatusOr<int> UringFileIo::Open(const std::string& path, uint64_t bytes) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC;
  int fd = ::open(path.c_str(), kFlags | O_DIRECT, 0600);
  if (fd < 0 && errno == EINVAL) {
    fd = ::open(path.c_str(), kFlags, 0600);
    if (fd >= 0 && direct_.exchange(false)) {
      Log(LogLevel::kWarning, "ssd", "{}: no direct I/O on this file system", path);
    }
  }
  if (fd < 0) return ErrnoStatus("opening", path, errno);
  struct stat status;
  int error = ::fstat(fd, &status) == 0 ? 0 : errno;
  if (error == 0 && static_cast<uint64_t>(status.st_size) >= bytes) return fd;
  if (error == 0) error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (error == 0 && ::fsync(fd) != 0) error = errno;
  absl::Status made = error == 0 ? SyncFolderOf(path) : ErrnoStatus("allocating", path, error);
  if (made.ok()) return fd;
  ::close(fd);
  ::unlink(path.c_str());
  return made;
}

absl::Status UringFileIo::Remove(const std::string& path) {
  if (::unlink(path.c_str()) != 0) return ErrnoStatus("removing", path, errno);
  return SyncFolderOf(path);
}

void UringFileIo::Submit(std::span<IoRequest* const> requests) {
  Requests some;
  {
    MutexLock lock(&mutex_);
    waiting_.insert(waiting_.end(), requests.begin(), requests.end());
    some = TakeLocked();
  }
  Start(some);
}

bool UringFileIo::WaitIdle(absl::Duration timeout) {
  const absl::Duration end = Clock::Real()->Now() + timeout;
  MutexLock lock(&mutex_);
  while (in_flight_ > 0 || !waiting_.empty()) {
    const absl::Duration left = end - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) return false;
    idle_.WaitWithTimeout(&mutex_, left);
  }
  return true;
}

UringFileIo::Requests UringFileIo::TakeLocked() {
  if (waiting_.empty() || in_flight_ >= depth_) return {};
  if (!IsLarge(*waiting_.front())) return TakeAllLocked();
  large_waits_.Signal();
  return {};
}

UringFileIo::Requests UringFileIo::TakeAllLocked() {
  Requests some;
  for (; in_flight_ < depth_ && !waiting_.empty(); ++in_flight_) {
    some.push_back(waiting_.front());
    waiting_.pop_front();
  }
  return some;
}

void UringFileIo::StartLarge() {
  while (true) {
    Requests some;
    {
      MutexLock lock(&mutex_);
      while (!ending_ && (waiting_.empty() || in_flight_ >= depth_)) {
        large_waits_.WaitWithTimeout(&mutex_, kPatience);
      }
      if (ending_) return;
      some = TakeAllLocked();
    }
    Start(some);
  }
}

// The ring has room for all of them, so neither taking an entry nor submitting can fail but for a
// bug. Once the kernel has a request, it may be complete and gone.
void UringFileIo::Start(std::span<IoRequest* const> requests) {
  if (requests.empty()) return;
  MutexLock lock(&ring_mutex_);
  for (IoRequest* const request : requests) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    const auto pieces = request->pieces();
    const auto count = static_cast<unsigned>(pieces.size());
    switch (request->kind) {
      case IoKind::kRead:
        io_uring_prep_readv(entry, request->file, pieces.data(), count, request->offset);
        break;
      case IoKind::kWrite:
        io_uring_prep_writev(entry, request->file, pieces.data(), count, request->offset);
        break;
      case IoKind::kDataSync:
        io_uring_prep_fsync(entry, request->file, IORING_FSYNC_DATASYNC);
        break;
    }
    io_uring_sqe_set_data(entry, request);
  }
  started_.fetch_add(requests.size(), std::memory_order_release);
  for (size_t left = requests.size(); left > 0;) {
    const int taken = io_uring_submit(&ring_);
    if (taken == -EINTR || taken == -EAGAIN || taken == -EBUSY) continue;
    if (taken <= 0) std::abort();
    left -= std::min(left, static_cast<size_t>(taken));
  }
}

void UringFileIo::Reap() {
  while (true) {
    io_uring_cqe* event = nullptr;
    const int error = io_uring_wait_cqe(&ring_, &event);
    if (error == -EINTR) continue;
    if (error < 0) std::abort();
    (void)started_.load(std::memory_order_acquire);
    auto* request = static_cast<IoRequest*>(io_uring_cqe_get_data(event));
    const int64_t result = event->res;
    io_uring_cqe_seen(&ring_, event);
    if (request == nullptr) return;
    Requests some;
    {
      MutexLock lock(&mutex_);
      --in_flight_;
      some = TakeLocked();
      if (in_flight_ == 0) idle_.Signal();
    }
    Start(some);
    request->Complete(result);
  }
}

}  // namespace

void IoRequest::Advance(uint64_t count) {
  offset += count;
  size_t kept = 0;
  for (const iovec& piece : pieces()) {
    const uint64_t skip = std::min<uint64_t>(count, piece.iov_len);
    count -= skip;
    if (skip == piece.iov_len) continue;
    pieces_[kept++] = {static_cast<std::byte*>(piece.iov_base) + skip, piece.iov_len - skip};
  }
  piece_count_ = kept;
}

absl::StatusOr<std::unique_ptr<FileIo>> CreateFileIo(uint32_t depth) {
  auto io = std::make_unique<UringFileIo>(depth);
  TERRACE_RETURN_IF_ERROR(io->Start());
  return io;
}

}  // namespace terrace
