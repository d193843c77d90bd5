// How much may be written: so many bytes per second, and a burst of what was not used.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "proto/clock.h"
#include "proto/mutex.h"

namespace terrace {

// Thread-safe.
class WriteAllowance {
 public:
  // A rate of 0: no bound. `clock` outlives the object. The burst is there from the start.
  WriteAllowance(double bytes_per_second, double burst_bytes, Clock* clock = Clock::Real())
      : rate_(bytes_per_second), burst_(burst_bytes), clock_(clock), left_(burst_bytes) {}

  // How long until something may be written; zero: now.
  absl::Duration Wait() const;
  // Was written, or will be. More than there is delays what follows.
  void Spend(uint64_t bytes);
  // Was spent, and not written after all.
  void Return(uint64_t bytes);

 private:
  void RefillLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const double rate_;
  const double burst_;
  Clock* const clock_;
  mutable Mutex mutex_;
  mutable double left_ ABSL_GUARDED_BY(mutex_);
  mutable absl::Duration refilled_at_ ABSL_GUARDED_BY(mutex_) = clock_->Now();
};

}  // namespace terrace
