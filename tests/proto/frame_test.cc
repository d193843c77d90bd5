#include "proto/frame.h"

#include <random>

#include "gtest/gtest.h"

namespace terrace {
namespace {

WireKey Key(uint8_t n) { return {Digest{{n, 1, 2}}, n}; }

std::vector<FrameBody> OneOfEach() {
  const std::vector<std::byte> envelope(200, std::byte{9});
  return {HelloFrame{{1, 2, 3}},
          HelloReplyFrame{WireStatus::kUnauthenticated},
          MatchFrame{{7}, true, 1500, {Key(1), Key(2)}},
          MatchReplyFrame{WireStatus::kAskAgain, 77, {Tier::kGpu, Tier::kHost, Tier::kSsd}},
          GetFrame{{7}, 250, {{Key(1), 0, 0}, {Key(2), 3, 4}}},
          BlockFrame{5, WireStatus::kOk, envelope},
          ReserveFrame{{7}, 250, {{Key(1), {1 << 20, 32}, 4, 10}}},
          ReserveReplyFrame{{{WireStatus::kOk, 88}, {WireStatus::kNoSpace, 0}}},
          ValueFrame{1, 88, envelope},
          PutReplyFrame{1, WireStatus::kChecksumMismatch},
          TouchFrame{{7}, {Key(1), Key(2), Key(3)}},
          ReleaseFrame{77},
          CancelFrame{},
          PutFrame{{7}, 250, {Key(1), {8192, 2}, 9, 10}, envelope},
          PersistFrame{{7}, {Key(1), Key(2)}},
          LendFrame{{7}, 250, 450, {3, 4}, {Key(1), Key(2)}},
          LentFrame{9, {{1, WireStatus::kOk, 8192, 256, 77}, {0, WireStatus::kMiss}}},
          LandedFrame{{7}, 250, 3, 88, {Key(1), {8192, 2}, 9, 10}, 4096, envelope}};
}

TEST(Frame, EachTypeRoundTrips) {
  const std::vector<FrameBody> all = OneOfEach();
  ASSERT_EQ(all.size(), std::variant_size_v<FrameBody>);
  for (const FrameBody& body : all) {
    const std::vector<std::byte> bytes = Encode(0x1234567890, body);
    auto frame = Decode(bytes);
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ(frame->request_id, 0x1234567890u);
    EXPECT_EQ(frame->body.index(), body.index());
    // Encoding is a function of the value, so equal bytes mean equal fields.
    EXPECT_EQ(Encode(frame->request_id, frame->body), bytes) << body.index();
  }
}

TEST(Frame, LayoutOnTheWireIsFixed) {
  // Golden bytes: a change here is a change of the protocol and needs a new version.
  const std::vector<std::byte> bytes = Encode(258, PutReplyFrame{3, WireStatus::kExists});
  EXPECT_EQ(ToHex(bytes),
            "5446010a00000000"
            "0201000000000000"
            "030003");
}

TEST(Frame, TheLargestBatchesFitAFrame) {
  MatchFrame match{{1}, false, 0, std::vector<WireKey>(kMaxKeysPerFrame)};
  GetFrame get{{1}, 0, std::vector<GetItem>(kMaxKeysPerFrame)};
  ReserveFrame reserve{{1}, 0, std::vector<ReserveItem>(kMaxKeysPerFrame)};
  for (const FrameBody& body : std::vector<FrameBody>{match, get, reserve}) {
    const std::vector<std::byte> bytes = Encode(1, body);
    EXPECT_LE(bytes.size(), 32u << 10);
    EXPECT_TRUE(Decode(bytes).ok());
  }
}

TEST(Frame, EveryTruncationAndEveryExtraByteIsRefused) {
  for (const FrameBody& body : OneOfEach()) {
    std::vector<std::byte> bytes = Encode(1, body);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(Decode(ByteSpan(bytes).first(size)).ok()) << body.index() << " at " << size;
    }
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(Decode(bytes).ok()) << body.index();
  }
}

TEST(Frame, BoundsHoldBeforeMemoryIsTaken) {
  std::vector<std::byte> bytes = Encode(1, MatchFrame{{1}, false, 0, {Key(1)}});
  // The count of keys is the last field before them: ask for 65,535.
  const size_t count_at = bytes.size() - 34 - 2;
  bytes[count_at] = bytes[count_at + 1] = std::byte{0xff};
  EXPECT_EQ(Decode(bytes).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Frame, ForeignVersionAndMagicAreNamed) {
  std::vector<std::byte> bytes = Encode(1, CancelFrame{});
  bytes[2] = std::byte{9};
  EXPECT_NE(Decode(bytes).status().message().find("version 9"), absl::string_view::npos);
  bytes[0] = std::byte{0};
  EXPECT_FALSE(Decode(bytes).ok());
}

TEST(Frame, RandomBytesNeverDoHarm) {
  std::mt19937_64 random(20260101);
  const std::vector<FrameBody> all = OneOfEach();
  for (int round = 0; round < 200'000; ++round) {
    std::vector<std::byte> bytes = Encode(1, all[random() % all.size()]);
    for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
      bytes[random() % bytes.size()] = std::byte(random());
    }
    if (auto frame = Decode(bytes); frame.ok()) {
      EXPECT_EQ(Encode(frame->request_id, frame->body), bytes);
    }
  }
}

}  // namespace
}  // namespace terrace
