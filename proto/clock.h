// Time behind an interface, so that tests decide what time it is.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace terrace {

// Monotonic time. An instant is the duration since an arbitrary origin of this process: compare
// and subtract, never print as a date. Thread-safe, does not block.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Duration Now() const = 0;

  // The machine's monotonic clock; never destroyed.
  static Clock* Real();
};

// The deterministic twin: time stands still until it is told to move. Thread-safe.
class ManualClock : public Clock {
 public:
  absl::Duration Now() const override {
    return absl::Nanoseconds(now_ns_.load(std::memory_order_acquire));
  }
  void Advance(absl::Duration step) {
    now_ns_.fetch_add(absl::ToInt64Nanoseconds(step), std::memory_order_acq_rel);
  }

 private:
  std::atomic<int64_t> now_ns_{1'000'000'000};
};

}  // namespace terrace
