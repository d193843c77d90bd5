#include "proto/envelope.h"

#include <numeric>
#include <random>

#include "gtest/gtest.h"
#include "proto/checksum.h"

namespace terrace {
namespace {

Envelope SampleEnvelope() {
  Envelope e;
  e.key = {{42}, {}, 3};
  std::iota(e.key.digest.bytes.begin(), e.key.digest.bytes.end(), uint8_t{1});
  e.generation = 0x1122334455667788;
  e.layout_id = 99;
  e.shape = {64 << 10, 4};
  e.metadata = {Digest{{7}}, 12, TrafficClass::kAgent, std::string("with\0zero", 9)};
  e.checksums = {1, 2, 3, 0xffffffff};
  return e;
}

std::vector<std::byte> Encoded(const Envelope& e) {
  std::vector<std::byte> bytes(kMaxEnvelopeBytes);
  bytes.resize(e.EncodeTo(bytes));
  return bytes;
}

// Writes the checksum that a forger would.
void Reseal(std::vector<std::byte>* bytes) {
  uint64_t generation;
  std::memcpy(&generation, bytes->data() + 64, sizeof(generation));
  SetGeneration(*bytes, generation);
}

TEST(Envelope, RoundTrips) {
  const Envelope e = SampleEnvelope();
  const std::vector<std::byte> bytes = Encoded(e);
  EXPECT_EQ(bytes.size(), EnvelopeBytes(4, e.metadata.opaque.size()));
  auto view = EnvelopeView::Parse(bytes);
  ASSERT_TRUE(view.ok()) << view.status();
  const Envelope back = view->ToValue();
  EXPECT_EQ(back.key, e.key);
  EXPECT_EQ(back.generation, e.generation);
  EXPECT_EQ(back.layout_id, e.layout_id);
  EXPECT_EQ(back.shape, e.shape);
  EXPECT_EQ(back.checksums, e.checksums);
  EXPECT_EQ(back.metadata.parent, e.metadata.parent);
  EXPECT_EQ(back.metadata.depth, e.metadata.depth);
  EXPECT_EQ(back.metadata.traffic_class, e.metadata.traffic_class);
  EXPECT_EQ(back.metadata.opaque, e.metadata.opaque);
}

TEST(Envelope, LargestFits) {
  Envelope e = SampleEnvelope();
  e.shape = {kMaxBlockBytes, kMaxSegments};
  e.checksums.assign(kMaxSegments, 5);
  e.metadata.opaque.assign(kMaxOpaqueBytes, 'o');
  e.metadata.parent.reset();
  const std::vector<std::byte> bytes = Encoded(e);
  EXPECT_EQ(bytes.size(), kMaxEnvelopeBytes);
  auto view = EnvelopeView::Parse(bytes);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_FALSE(view->metadata().parent.has_value());
}

TEST(Envelope, ANewGenerationIsSealedAgain) {
  std::vector<std::byte> bytes = Encoded(SampleEnvelope());
  SetGeneration(bytes, 5);
  auto view = EnvelopeView::Parse(bytes);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->generation(), 5u);
}

TEST(Envelope, EveryFlippedBitIsFound) {
  const std::vector<std::byte> good = Encoded(SampleEnvelope());
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    EXPECT_EQ(EnvelopeView::Parse(bad).status().code(), absl::StatusCode::kDataLoss) << bit;
  }
}

TEST(Envelope, EveryTruncationIsFound) {
  const std::vector<std::byte> good = Encoded(SampleEnvelope());
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(EnvelopeView::Parse(ByteSpan(good).first(size)).ok()) << size;
  }
}

TEST(Envelope, WhatFormat1DoesNotDefineIsRefusedEvenWhenSealed) {
  const struct {
    size_t offset;
    std::byte value;
    const char* what;
  } kCases[] = {
      {4, std::byte{2}, "a later version"},           {12, std::byte{1}, "an unknown codec"},
      {13, std::byte{9}, "an unknown class"},         {15, std::byte{1}, "an unknown flag"},
      {120, std::byte{1}, "a reserved byte"},         {191, std::byte{1}, "the last of them"},
      {84, std::byte{3}, "a segment too few"},        {83, std::byte{255}, "a huge length"},
      {14, std::byte{0}, "a parent without its flag"}};
  for (const auto& c : kCases) {
    std::vector<std::byte> bytes = Encoded(SampleEnvelope());
    bytes[c.offset] = c.value;
    Reseal(&bytes);
    EXPECT_FALSE(EnvelopeView::Parse(bytes).ok()) << c.what;
  }
}

TEST(Crc32c, KnownVectors) {
  EXPECT_EQ(Crc32c(AsBytes("123456789")), 0xe3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
  // RFC 3720 B.4: 32 bytes of zeros, and of ones.
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32)), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
}

TEST(SegmentChecksummer, PiecesOfAnySizeGiveTheSameChecksums) {
  constexpr uint32_t kSegment = 1000, kSegments = 7;
  std::vector<std::byte> data(kSegment * kSegments);
  std::mt19937 random(1);
  for (std::byte& b : data) b = std::byte(random());
  for (size_t piece : {1ul, 7ul, 999ul, 1000ul, 1001ul, 4096ul, data.size()}) {
    std::vector<uint32_t> checksums(kSegments);
    SegmentChecksummer summer(kSegment, checksums);
    for (size_t at = 0; at < data.size(); at += piece) {
      summer.Update(ByteSpan(data).subspan(at, std::min(piece, data.size() - at)));
    }
    EXPECT_EQ(summer.finished(), kSegments);
    for (uint32_t i = 0; i < kSegments; ++i) {
      EXPECT_EQ(checksums[i], Crc32c(ByteSpan(data).subspan(i * kSegment, kSegment))) << piece;
    }
  }
}

TEST(BlockShape, BoundsAreNamed) {
  EXPECT_TRUE(Validate({kMinBlockBytes, 1}).ok());
  EXPECT_TRUE(Validate({kMaxBlockBytes, kMaxSegments}).ok());
  const BlockShape kBad[] = {{0, 1},    {kMinBlockBytes - 1, 1},  {kMaxBlockBytes + 1, 1},
                             {8192, 0}, {8192, kMaxSegments + 1}, {8192, 3}};
  for (const BlockShape& shape : kBad) {
    EXPECT_EQ(Validate(shape).code(), absl::StatusCode::kInvalidArgument) << shape.length;
  }
  EXPECT_FALSE(Validate({2 << 20, 1}, 1 << 20).ok());
}

}  // namespace
}  // namespace terrace
