#include "client/operation.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client/data_channel.h"
#include "fmt/format.h"

namespace terrace {

const char* ToString(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kMiss:
      return "miss";
    case Outcome::kAskAgain:
      return "ask again";
    case Outcome::kNoSpace:
      return "no space";
    case Outcome::kNotDurable:
      return "not durable";
    case Outcome::kCorrupt:
      return "corrupt";
    case Outcome::kInvalid:
      return "invalid";
    case Outcome::kRefused:
      return "refused";
    case Outcome::kOverloaded:
      return "overloaded";
    case Outcome::kTimeout:
      return "timeout";
    case Outcome::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

bool IoHandle::Post(absl::AnyInvocable<void(DataChannel&)> work) {
  MutexLock lock(&mutex_);
  if (transport_ == nullptr) return false;
  transport_->Post([channel = channel_, work = std::move(work)]() mutable { work(*channel); });
  return true;
}

void IoHandle::Close() {
  MutexLock lock(&mutex_);
  transport_ = nullptr;
}

CompletionQueue::~CompletionQueue() {
  if (fd_ >= 0) close(fd_);
}

absl::Status CompletionQueue::Open() {
  fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd_ >= 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format("completions: {}", std::strerror(errno)));
}

void CompletionQueue::Push(std::shared_ptr<Operation::State> operation) {
  MutexLock lock(&mutex_);
  if (done_.empty()) eventfd_write(fd_, 1);
  done_.push_back(std::move(operation));
}

size_t CompletionQueue::Poll(std::vector<Operation>* done, size_t limit) {
  MutexLock lock(&mutex_);
  const size_t count = std::min(limit, done_.size());
  if (count == 0) return 0;
  for (size_t i = 0; i < count; ++i) {
    if (done_.front()->gauge != nullptr) done_.front()->gauge->Leave();
    done->emplace_back(std::move(done_.front()));
    done_.pop_front();
  }
  eventfd_t value;
  if (done_.empty()) eventfd_read(fd_, &value);
  return count;
}

void Operation::State::SetOutcome(size_t index, Outcome outcome) {
  results[index].outcome = outcome;
  if (outcome == Outcome::kOk) succeeded.fetch_add(1, std::memory_order_relaxed);
}

void Operation::State::Finish() {
  if (gauge != nullptr && !options.notify) gauge->Leave();
  {
    MutexLock lock(&mutex);
    done.store(true, std::memory_order_release);
    finished.SignalAll();
  }
  if (options.callback) options.callback(Operation(shared_from_this()));
  if (options.notify) completions->Push(shared_from_this());
}

void Operation::State::Wait() {
  // The I/O thread ends every operation by its deadline plus the time that the transport takes
  // to become quiet; leaving earlier would hand out memory that is still being written.
  constexpr absl::Duration kSlice = absl::Seconds(1);
  MutexLock lock(&mutex);
  while (!done.load(std::memory_order_acquire)) finished.WaitWithTimeout(&mutex, kSlice);
}

bool Operation::done() const {
  return state_ == nullptr || state_->done.load(std::memory_order_acquire);
}

void Operation::Wait() const {
  if (!done()) state_->Wait();
}

std::span<const BlockResult> Operation::results() const {
  if (state_ == nullptr || !done()) return {};
  return state_->results;
}

size_t Operation::succeeded() const {
  return state_ == nullptr ? 0 : state_->succeeded.load(std::memory_order_relaxed);
}

size_t Operation::Cancel() const {
  if (!done()) {
    state_->io->Post([id = state_->id](DataChannel& channel) { channel.Cancel(id); });
    state_->Wait();
  }
  return succeeded();
}

uint64_t Operation::id() const { return state_ == nullptr ? 0 : state_->id; }

}  // namespace terrace
