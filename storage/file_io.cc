#include "storage/file_io.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "fmt/format.h"
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

 private:
  void StartLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Reap();

  const uint32_t depth_;
  io_uring ring_{};  // submission side under mutex_, completion side by reaper_ alone
  bool ring_ready_ = false;
  std::thread reaper_;
  Mutex mutex_;
  std::deque<IoRequest*> waiting_ ABSL_GUARDED_BY(mutex_);
  uint32_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::Status UringFileIo::Start() {
  // One entry more than requests in flight, for the one that ends the reaper.
  if (const int error = io_uring_queue_init(depth_ + 1, &ring_, 0); error < 0) {
    return absl::UnavailableError(
        fmt::format("io_uring is not to be had here: {}", std::strerror(-error)));
  }
  ring_ready_ = true;
  reaper_ = std::thread([this] { Reap(); });
  return absl::OkStatus();
}

UringFileIo::~UringFileIo() {
  if (!ring_ready_) return;
  {
    MutexLock lock(&mutex_);
    if (in_flight_ != 0 || !waiting_.empty()) std::abort();
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
    if (fd >= 0) Log(LogLevel::kWarning, "ssd", "{}: no direct I/O on this file system", path);
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
  MutexLock lock(&mutex_);
  waiting_.insert(waiting_.end(), requests.begin(), requests.end());
  StartLocked();
}

// Hands waiting requests to the kernel up to the depth. The ring has room for all of them, so
// neither taking an entry nor submitting can fail but for a bug.
void UringFileIo::StartLocked() {
  uint32_t started = 0;
  for (; in_flight_ < depth_ && !waiting_.empty(); ++in_flight_, ++started) {
    IoRequest* request = waiting_.front();
    waiting_.pop_front();
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
  while (started > 0) {
    const int taken = io_uring_submit(&ring_);
    if (taken == -EINTR || taken == -EAGAIN || taken == -EBUSY) continue;
    if (taken <= 0) std::abort();
    started -= std::min(started, static_cast<uint32_t>(taken));
  }
}

void UringFileIo::Reap() {
  while (true) {
    io_uring_cqe* event = nullptr;
    const int error = io_uring_wait_cqe(&ring_, &event);
    if (error == -EINTR) continue;
    if (error < 0) std::abort();
    auto* request = static_cast<IoRequest*>(io_uring_cqe_get_data(event));
    const int64_t result = event->res;
    io_uring_cqe_seen(&ring_, event);
    if (request == nullptr) return;
    {
      MutexLock lock(&mutex_);
      --in_flight_;
      if (!waiting_.empty()) StartLocked();
    }
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
