// One answer from the I/O thread to a caller that blocks for it.
#pragma once

#include <utility>

#include "absl/time/time.h"
#include "proto/mutex.h"

namespace terrace {

template <typename T>
class Waiter {
 public:
  void Finish(T answer) {
    MutexLock lock(&mutex_);
    answer_ = std::move(answer);
    done_ = true;
    finished_.Signal();  // under the lock: the waiter destroys this object once it has seen done_
  }

  // Returns when the answer is there: what is asked of the I/O thread ends by its own deadline.
  T Wait() {
    constexpr absl::Duration kSlice = absl::Seconds(1);
    MutexLock lock(&mutex_);
    while (!done_) finished_.WaitWithTimeout(&mutex_, kSlice);
    return std::move(answer_);
  }

 private:
  Mutex mutex_;
  CondVar finished_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  T answer_ ABSL_GUARDED_BY(mutex_){};
};

}  // namespace terrace
