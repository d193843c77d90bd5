// What an Operation handle and the I/O thread share, and how handles that outlive the client
// reach that thread.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "cluster/transport.h"
#include "proto/mutex.h"

namespace terrace {

class DataChannel;

// The way to the I/O thread and the data channel on it, for handles (operations, leases) that
// may outlive the client. Thread-safe.
class IoHandle {
 public:
  IoHandle(Transport* transport, DataChannel* channel) : transport_(transport), channel_(channel) {}

  // Runs `work` on the I/O thread; false, and `work` destroyed unrun, after Close().
  bool Post(absl::AnyInvocable<void(DataChannel&)> work);
  // Called before transport and channel end.
  void Close();

 private:
  Mutex mutex_;
  Transport* transport_ ABSL_GUARDED_BY(mutex_);  // null once closed
  DataChannel* const channel_;
};

// Operations that completed with `notify` and were not polled yet. Thread-safe.
class CompletionQueue {
 public:
  CompletionQueue() = default;
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  // Once, before all else. ResourceExhausted when the process has no descriptors left.
  absl::Status Open();
  void Push(std::shared_ptr<Operation::State> operation);
  size_t Poll(std::vector<Operation>* done, size_t limit);
  int fd() const { return fd_; }

 private:
  int fd_ = -1;  // an eventfd, non-zero exactly while done_ holds something
  Mutex mutex_;
  std::deque<std::shared_ptr<Operation::State>> done_ ABSL_GUARDED_BY(mutex_);
};

// Counts what waits for the node, or for its owner to poll it.
class OperationGauge {
 public:
  explicit OperationGauge(uint32_t limit) : limit_(limit) {}
  bool Enter() {
    if (count_.fetch_add(1, std::memory_order_relaxed) < limit_) return true;
    Leave();
    return false;
  }
  void Leave() { count_.fetch_sub(1, std::memory_order_relaxed); }
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  const uint32_t limit_;
  std::atomic<uint32_t> count_{0};
};

struct Operation::State : std::enable_shared_from_this<Operation::State> {
  State(uint64_t operation_id, size_t requests, OperationOptions its_options)
      : id(operation_id), options(std::move(its_options)), results(requests) {}

  // On the I/O thread (or on the submitting one before it was handed over).
  void SetOutcome(size_t index, Outcome outcome);
  // Makes the results visible, wakes, calls back. Once, last, on the I/O thread.
  void Finish();
  void Wait();

  const uint64_t id;
  const OperationOptions options;
  std::shared_ptr<IoHandle> io;
  std::shared_ptr<CompletionQueue> completions;
  std::shared_ptr<OperationGauge> gauge;  // null where the operation was not let in

  std::vector<BlockResult> results;  // the I/O thread's until done
  std::atomic<size_t> succeeded{0};
  std::atomic<bool> done{false};
  Mutex mutex;
  CondVar finished;
};

}  // namespace terrace
