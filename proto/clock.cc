#include "proto/clock.h"

#include <chrono>

namespace terrace {
namespace {

class SteadyClock : public Clock {
 public:
  absl::Duration Now() const override {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace

Clock* Clock::Real() {
  static SteadyClock* const clock = new SteadyClock;
  return clock;
}

}  // namespace terrace
