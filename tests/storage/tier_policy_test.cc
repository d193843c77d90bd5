#include "storage/tier_policy.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/frequency.h"

namespace terrace {
namespace {

TEST(GivenUpBefore, LowerScoreThenDeeper) {
  EXPECT_TRUE(GivenUpBefore({1, 0}, {2, 9}));
  EXPECT_FALSE(GivenUpBefore({2, 9}, {1, 0}));
  EXPECT_TRUE(GivenUpBefore({1, 5}, {1, 4}));
  EXPECT_FALSE(GivenUpBefore({1, 4}, {1, 5}));
  EXPECT_FALSE(GivenUpBefore({1, 4}, {1, 4}));
}

TEST(Watermarks, AreValidatedByName) {
  EXPECT_TRUE(Validate(Watermarks{.99, .98}).ok());
  EXPECT_TRUE(Validate(Watermarks{1, 1}).ok());
  for (const Watermarks bad : {Watermarks{.9, .95}, Watermarks{1.1, .9}, Watermarks{.9, 0}}) {
    EXPECT_THAT(std::string(Validate(bad).message()), testing::HasSubstr("low_mark"));
  }
}

TEST(BytesToFree, FromAboveHighDownToLow) {
  const Watermarks marks{.9, .8};
  EXPECT_EQ(BytesToFree(marks, 850, 1000), 0);
  EXPECT_EQ(BytesToFree(marks, 900, 1000), 0);
  EXPECT_EQ(BytesToFree(marks, 901, 1000), 101);
  EXPECT_EQ(BytesToFree(marks, 1000, 1000), 200);
}

TEST(CapacityInBlocks, FollowsTheMeanPlace) {
  EXPECT_EQ(CapacityInBlocks(1000, 5, 50), 100);
  EXPECT_EQ(CapacityInBlocks(1000, 0, 0), 1);
}

TEST(ChooseWindow, WithoutOffersThereIsNone) {
  EXPECT_EQ(ChooseWindow(std::nullopt, {}), std::nullopt);
  EXPECT_EQ(ChooseWindow(Offer{1, 10}, {}), std::nullopt);
}

TEST(Worth, OfABlockIsItsUsesTimesItsBytes) {
  EXPECT_DOUBLE_EQ(Worth(3, 1024), 13);
  EXPECT_DOUBLE_EQ((Offer{Worth(3, 1024), 1024}.worth_per_byte()), 3);
}

TEST(ChooseWindow, ByWorthPerByte) {
  const std::vector<Offer> windows = {{20, 1024}, {13, 1024}, {15, 1024}};  // 10, 3, 5 per byte
  EXPECT_EQ(ChooseWindow(std::nullopt, windows), 1);
  EXPECT_EQ(ChooseWindow(Offer{Worth(3.1, 512), 512}, windows), 1);
  // On equal terms the own victim goes.
  EXPECT_EQ(ChooseWindow(Offer{Worth(3, 512), 512}, windows), std::nullopt);
}

TEST(ChooseWindow, AnEmptyWindowCostsNothing) {
  const std::vector<Offer> windows = {{1, 1024}, {kNoScore, 1024}};
  EXPECT_EQ(ChooseWindow(Offer{-100, 512}, windows), 1);
}

TEST(ChooseWindow, SizeAloneDecidesNothing) {
  double small = kNoScore;
  for (int i = 0; i < 32; ++i) small = LogSum(small, Worth(1, 64));
  const std::vector<Offer> windows = {{small, 32 * 64}};
  EXPECT_EQ(ChooseWindow(Offer{Worth(1.1, 2048), 2048}, windows), 0);
  EXPECT_EQ(ChooseWindow(Offer{Worth(0.9, 2048), 2048}, windows), std::nullopt);
  EXPECT_EQ(ChooseWindow(Offer{Worth(0.9, 16), 16}, windows), std::nullopt);
}

}  // namespace
}  // namespace terrace
