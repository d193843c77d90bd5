// Latencies in bounded memory: buckets whose width grows with the value (at most 1/16 of it).
#pragma once

#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace terrace {

class LatencyHistogram {
 public:
  void Add(absl::Duration latency);
  void Merge(const LatencyHistogram& other);
  uint64_t count() const { return count_; }
  // In microseconds; 0 when empty. `share` is 0 to 1.
  double Quantile(double share) const;

 private:
  static constexpr int kSteps = 16;              // buckets per power of two
  std::array<uint64_t, 40 * kSteps> buckets_{};  // of nanoseconds, up to 2^43 (two hours)
  uint64_t count_ = 0;
};

}  // namespace terrace
