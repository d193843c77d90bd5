// How long to wait before the next attempt: 50 ms, doubling up to 2 s, each shortened by up to a
// half at random so that clients of a returning node do not arrive together.
#pragma once

#include <algorithm>
#include <random>

#include "absl/time/time.h"

namespace terrace {

class Backoff {
 public:
  absl::Duration Next() {
    const absl::Duration full = next_;
    next_ = std::min(next_ * 2, kLongest);
    return full * std::uniform_real_distribution<double>(0.5, 1.0)(random_);
  }
  void Reset() { next_ = kShortest; }

 private:
  static constexpr absl::Duration kShortest = absl::Milliseconds(50);
  static constexpr absl::Duration kLongest = absl::Seconds(2);

  absl::Duration next_ = kShortest;
  std::minstd_rand random_{std::random_device{}()};
};

}  // namespace terrace
