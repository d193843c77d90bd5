#include "tests/bench/pump.h"

namespace terrace::bench {

absl::Status Pump::Run(int depth) {
  for (int i = 0; i < depth; ++i) StartOne();
  MutexLock lock(&mutex_);
  while (ended_ < started_) {
    if (!all_ended_.WaitWithTimeout(&mutex_, kTimeout)) {
      return absl::DeadlineExceededError("operations did not end");
    }
  }
  return first_error_;
}

void Pump::StartOne() {
  size_t index;
  {
    MutexLock lock(&mutex_);
    if (started_ == count_ || !first_error_.ok()) return;
    index = started_++;
  }
  start_(index, Done(this));
}

// The next one is started before this one counts: none is left when both numbers are equal.
void Pump::Ended(const absl::Status& status) {
  if (!status.ok()) {
    MutexLock lock(&mutex_);
    first_error_.Update(status);
  }
  StartOne();
  MutexLock lock(&mutex_);
  if (++ended_ == started_) all_ended_.Signal();
}

}  // namespace terrace::bench
