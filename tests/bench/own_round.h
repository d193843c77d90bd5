// What a contender within this process takes for its work.
#pragma once

#include "absl/time/time.h"
#include "proto/clock.h"
#include "tests/bench/rounds.h"
#include "tests/support/child_process.h"

namespace terrace::bench {

class OwnRound {
 public:
  // Since this object was made, of time and of this process's processor time.
  Measurement Ended(size_t bytes) const {
    const double gigabytes = static_cast<double>(bytes) / 1e9;
    return {gigabytes / absl::ToDoubleSeconds(Clock::Real()->Now() - start_),
            absl::ToDoubleSeconds(OwnCpuTime() - cpu_before_) / gigabytes};
  }

 private:
  const absl::Duration cpu_before_ = OwnCpuTime();
  const absl::Duration start_ = Clock::Real()->Now();
};

}  // namespace terrace::bench
