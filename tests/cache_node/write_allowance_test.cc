#include "cache_node/write_allowance.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(WriteAllowance, WithoutARateThereIsNoBound) {
  WriteAllowance allowance(0, 0);
  allowance.Spend(uint64_t{1} << 60);
  EXPECT_EQ(allowance.Wait(), absl::ZeroDuration());
}

TEST(WriteAllowance, ABurstThenTheRate) {
  ManualClock clock;
  WriteAllowance allowance(/*bytes_per_second=*/1000, /*burst_bytes=*/500, &clock);
  allowance.Spend(400);
  EXPECT_EQ(allowance.Wait(), absl::ZeroDuration());
  allowance.Spend(2100);  // one large block more than there is
  EXPECT_GT(allowance.Wait(), absl::Milliseconds(1999));
  EXPECT_LT(allowance.Wait(), absl::Milliseconds(2010));
  clock.Advance(absl::Seconds(1));
  EXPECT_GT(allowance.Wait(), absl::Milliseconds(999));
  clock.Advance(absl::Milliseconds(1001));
  EXPECT_EQ(allowance.Wait(), absl::ZeroDuration());
}

TEST(WriteAllowance, WhatIsNotUsedIsKeptUpToTheBurst) {
  ManualClock clock;
  WriteAllowance allowance(1000, 500, &clock);
  clock.Advance(absl::Hours(24));
  allowance.Spend(500);
  EXPECT_GT(allowance.Wait(), absl::ZeroDuration());
}

}  // namespace
}  // namespace terrace
