#include "storage/faulty_file_io.h"

#include <cerrno>
#include <cstring>
#include <random>

#include "fmt/format.h"
#include "proto/clock.h"

namespace terrace {

FaultyFileIo::FaultyFileIo() : thread_([this] { Serve(); }) {}

FaultyFileIo::~FaultyFileIo() {
  Release();
  {
    MutexLock lock(&mutex_);
    ending_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void FaultyFileIo::SetScript(std::function<IoFault(const IoRequest&)> script) {
  MutexLock lock(&mutex_);
  script_ = std::move(script);
}

void FaultyFileIo::SetCapacity(uint64_t bytes) {
  MutexLock lock(&mutex_);
  capacity_ = bytes;
}

bool FaultyFileIo::WaitForHeld(size_t count) {
  constexpr int kTries = 1000;
  MutexLock lock(&mutex_);
  for (int i = 0; held_.size() < count && i < kTries; ++i) {
    changed_.WaitWithTimeout(&mutex_, absl::Milliseconds(10));
  }
  return held_.size() >= count;
}

bool FaultyFileIo::WaitIdle(absl::Duration timeout) {
  const absl::Duration end = Clock::Real()->Now() + timeout;
  MutexLock lock(&mutex_);
  while (!waiting_.empty() || !held_.empty()) {
    const absl::Duration left = end - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitWithTimeout(&mutex_, left);
  }
  return true;
}

void FaultyFileIo::Release() {
  MutexLock lock(&mutex_);
  released_ = true;
  changed_.SignalAll();
}

std::unique_ptr<FaultyFileIo> FaultyFileIo::PowerCut(uint64_t seed) {
  auto after = std::make_unique<FaultyFileIo>();
  std::mt19937_64 random(seed);
  MutexLock lock(&mutex_);
  MutexLock lock_after(&after->mutex_);
  for (const auto& [path, file] : files_) {
    File& copy = after->files_[path];
    copy.bytes = file.bytes;
    for (const auto& [number, page] : file.pages) {
      copy.pages[number] = std::make_unique<Page>(*page);
    }
    for (const auto& [number, old] : file.before) {
      if (random() % 2 == 0) *copy.pages.at(number) = old;
    }
  }
  return after;
}

void FaultyFileIo::FlipBit(const std::string& path, uint64_t bit) {
  MutexLock lock(&mutex_);
  Page* page = PageOf(&files_.at(path), bit / 8 / kIoAlignment);
  (*page)[bit / 8 % kIoAlignment] ^= std::byte{1} << bit % 8;
}

void FaultyFileIo::SwapPages(const std::string& path_a, uint64_t page_a, const std::string& path_b,
                             uint64_t page_b) {
  MutexLock lock(&mutex_);
  std::swap(*PageOf(&files_.at(path_a), page_a), *PageOf(&files_.at(path_b), page_b));
}

uint64_t FaultyFileIo::bytes_written() const {
  MutexLock lock(&mutex_);
  return bytes_written_;
}

absl::StatusOr<uint64_t> FaultyFileIo::FileBytes(const std::string& path) {
  MutexLock lock(&mutex_);
  const auto file = files_.find(path);
  if (file == files_.end()) return absl::NotFoundError(fmt::format("{} does not exist", path));
  return file->second.bytes;
}

absl::StatusOr<int> FaultyFileIo::Open(const std::string& path, uint64_t bytes) {
  MutexLock lock(&mutex_);
  uint64_t others = 0;
  for (const auto& [other, file] : files_) others += other == path ? 0 : file.bytes;
  const auto found = files_.find(path);
  const uint64_t wanted = std::max(bytes, found == files_.end() ? 0 : found->second.bytes);
  if (wanted > capacity_ || others > capacity_ - wanted) {
    return absl::ResourceExhaustedError(fmt::format("allocating {}: no space", path));
  }
  files_[path].bytes = wanted;
  open_.push_back(path);
  return static_cast<int>(open_.size() - 1);
}

void FaultyFileIo::Close(int file) {
  MutexLock lock(&mutex_);
  open_[file].clear();
}

absl::Status FaultyFileIo::Remove(const std::string& path) {
  MutexLock lock(&mutex_);
  if (files_.erase(path) == 0) {
    return absl::NotFoundError(fmt::format("{} does not exist", path));
  }
  return absl::OkStatus();
}

void FaultyFileIo::Submit(std::span<IoRequest* const> requests) {
  MutexLock lock(&mutex_);
  waiting_.insert(waiting_.end(), requests.begin(), requests.end());
  changed_.SignalAll();
}

void FaultyFileIo::Serve() {
  mutex_.Lock();
  while (!ending_ || released_ || !waiting_.empty()) {
    if (released_) {
      released_ = false;
      waiting_.insert(waiting_.begin(), held_.begin(), held_.end());
      held_.clear();
      script_ = nullptr;
    }
    if (waiting_.empty()) {
      if (held_.empty()) changed_.SignalAll();
      changed_.WaitWithTimeout(&mutex_, absl::Seconds(1));
      continue;
    }
    IoRequest* request = waiting_.front();
    waiting_.pop_front();
    const IoFault fault = script_ ? script_(*request) : IoFault{};
    if (fault.kind == IoFault::kHold) {
      held_.push_back(request);
      changed_.SignalAll();
      continue;
    }
    const int64_t result = Execute(*request, fault);
    mutex_.Unlock();
    request->Complete(result);
    mutex_.Lock();
  }
  mutex_.Unlock();
}

FaultyFileIo::Page* FaultyFileIo::PageOf(File* file, uint64_t page) {
  auto& slot = file->pages[page];
  if (!slot) slot = std::make_unique<Page>();
  return slot.get();
}

int64_t FaultyFileIo::Execute(const IoRequest& request, const IoFault& fault) {
  if (fault.kind == IoFault::kError) return -fault.error;
  const auto found = files_.find(open_[request.file]);
  if (found == files_.end()) return -EBADF;
  File* file = &found->second;
  if (request.kind == IoKind::kDataSync) {
    file->before.clear();
    return 0;
  }
  const uint64_t bytes = request.bytes();
  if (request.offset % kIoAlignment != 0 || bytes % kIoAlignment != 0) return -EINVAL;
  if (request.offset + bytes > file->bytes) return -EFBIG;
  const bool partial = fault.kind == IoFault::kShort || fault.kind == IoFault::kTorn;
  const uint64_t moved = partial ? std::min(fault.bytes, bytes) : bytes;
  uint64_t done = 0;
  for (const iovec& piece : request.pieces()) {
    auto* memory = static_cast<std::byte*>(piece.iov_base);
    for (uint64_t at = 0; at < piece.iov_len; at += kIoAlignment, done += kIoAlignment) {
      const bool read = request.kind == IoKind::kRead;
      if (done >= moved) {
        if (read && fault.kind == IoFault::kTorn) std::memset(memory + at, 0, kIoAlignment);
        continue;
      }
      const uint64_t number = (request.offset + done) / kIoAlignment;
      MovePage(request, file, number, memory + at);
      if (fault.kind != IoFault::kFlip || fault.bit / 8 / kIoAlignment != done / kIoAlignment) {
        continue;
      }
      std::byte* page = read ? memory + at : PageOf(file, number)->data();
      page[fault.bit / 8 % kIoAlignment] ^= std::byte{1} << fault.bit % 8;
    }
  }
  if (request.kind == IoKind::kWrite) bytes_written_ += moved;
  return static_cast<int64_t>(fault.kind == IoFault::kShort ? moved : bytes);
}

void FaultyFileIo::MovePage(const IoRequest& request, File* file, uint64_t number,
                            std::byte* memory) {
  if (request.kind == IoKind::kRead) {
    const auto page = file->pages.find(number);
    if (page == file->pages.end()) {
      std::memset(memory, 0, kIoAlignment);
    } else {
      std::memcpy(memory, page->second->data(), kIoAlignment);
    }
    return;
  }
  Page* page = PageOf(file, number);
  file->before.try_emplace(number, *page);
  std::memcpy(page->data(), memory, kIoAlignment);
}

}  // namespace terrace
