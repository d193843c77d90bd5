// Tells a thread of a test when to end.
#pragma once

#include "absl/time/time.h"
#include "proto/mutex.h"

namespace terrace::testing {

// A pause that ends early when it is time to stop.
class Stop {
 public:
  // False when it is time to end.
  bool Wait(absl::Duration time) {
    MutexLock lock(&mutex_);
    if (!ending_) changed_.WaitWithTimeout(&mutex_, time);
    return !ending_;
  }
  void Now() {
    MutexLock lock(&mutex_);
    ending_ = true;
    changed_.SignalAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace::testing
