#include "client/load/histogram.h"

#include <algorithm>
#include <bit>

namespace terrace {

// Below kSteps a bucket per value; above, the top five bits of the value.
void LatencyHistogram::Add(absl::Duration latency) {
  const auto ns = static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Nanoseconds(latency)));
  size_t bucket = ns;
  if (ns >= kSteps) {
    const int power = std::bit_width(ns) - 5;
    bucket = static_cast<size_t>(power) * kSteps + (ns >> power);
  }
  ++buckets_[std::min(bucket, buckets_.size() - 1)];
  ++count_;
}

void LatencyHistogram::Merge(const LatencyHistogram& other) {
  for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
}

double LatencyHistogram::Quantile(double share) const {
  if (count_ == 0) return 0;
  const auto rank = static_cast<uint64_t>(share * static_cast<double>(count_ - 1));
  uint64_t seen = 0;
  size_t bucket = 0;
  while (bucket + 1 < buckets_.size() && (seen += buckets_[bucket]) <= rank) ++bucket;
  if (bucket < kSteps) return static_cast<double>(bucket) / 1000;
  const size_t power = bucket / kSteps - 1;
  const uint64_t low = (bucket % kSteps + kSteps) << power;
  return (static_cast<double>(low) + static_cast<double>(1ULL << power) / 2) / 1000;
}

}  // namespace terrace
