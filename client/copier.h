// Threads that copy blocks out of a node's memory, so that one block's copy does not hold up the
// other's, nor the client's I/O thread.
#pragma once

#include <deque>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "proto/mutex.h"

namespace terrace {

// Thread-safe. What waits is bounded by the bytes that operations may have under way.
class Copier {
 public:
  explicit Copier(size_t threads);
  // Runs what waits, which is quick when it has been called off.
  ~Copier();

  void Run(absl::AnyInvocable<void()> work);

  // One for two cores, at most four: memory, not cores, is what copies wait for.
  static size_t DefaultThreads();

 private:
  void Loop();

  Mutex mutex_;
  CondVar wake_;
  std::deque<absl::AnyInvocable<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace terrace
