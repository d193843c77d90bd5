#include "cache_node/write_allowance.h"

#include <algorithm>

namespace terrace {

void WriteAllowance::RefillLocked() const {
  const absl::Duration now = clock_->Now();
  left_ = std::min(burst_, left_ + rate_ * absl::ToDoubleSeconds(now - refilled_at_));
  refilled_at_ = now;
}

absl::Duration WriteAllowance::Wait() const {
  if (rate_ == 0) return absl::ZeroDuration();
  MutexLock lock(&mutex_);
  RefillLocked();
  if (left_ > 0) return absl::ZeroDuration();
  return absl::Seconds(-left_ / rate_) + absl::Milliseconds(1);  // something, not nothing
}

void WriteAllowance::Return(uint64_t bytes) {
  if (rate_ == 0) return;
  MutexLock lock(&mutex_);
  RefillLocked();
  left_ = std::min(burst_, left_ + static_cast<double>(bytes));
}

void WriteAllowance::Spend(uint64_t bytes) {
  if (rate_ == 0) return;
  MutexLock lock(&mutex_);
  RefillLocked();
  left_ -= static_cast<double>(bytes);
}

}  // namespace terrace
