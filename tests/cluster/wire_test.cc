// The transports' small parts: headers on the wire, their order, landings, addresses, the loop.
#include <array>
#include <atomic>
#include <random>

#include "cluster/event_loop.h"
#include "cluster/inbound_message.h"
#include "cluster/landing_writer.h"
#include "cluster/message_header.h"
#include "cluster/piece.h"
#include "cluster/socket_address.h"
#include "cluster/transport.h"
#include "gtest/gtest.h"
#include "proto/block.h"
#include "tests/cluster/transport_peer.h"

namespace terrace {
namespace {

std::vector<std::byte> Encode(const PieceHeader& header) {
  std::vector<std::byte> bytes(kPieceHeaderBytes + header.frame_part);
  EncodePieceHeader(header, std::span(bytes).first<kPieceHeaderBytes>());
  return bytes;
}

bool Accepted(const PieceHeader& header) {
  return DecodePieceHeader(Encode(header), header.data_bytes()).ok();
}

TEST(PieceTest, ComesBackAsItWent) {
  const PieceHeader header{.frame_bytes = 300,
                           .frame_offset = 100,
                           .frame_part = 200,
                           .sequence = 0x1122334455667788,
                           .payload_bytes = kMaxPayloadBytes};
  const auto decoded = DecodePieceHeader(Encode(header), kMaxPayloadBytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->kind, PieceKind::kData);
  EXPECT_EQ(decoded->frame_bytes, header.frame_bytes);
  EXPECT_EQ(decoded->frame_offset, header.frame_offset);
  EXPECT_EQ(decoded->frame_part, header.frame_part);
  EXPECT_EQ(decoded->sequence, header.sequence);
  EXPECT_EQ(decoded->payload_bytes, header.payload_bytes);
  EXPECT_TRUE(decoded->frame_complete());
}

TEST(PieceTest, RefusesWhatBreaksABound) {
  EXPECT_TRUE(Accepted({}));
  EXPECT_TRUE(Accepted({.kind = PieceKind::kHello}));
  EXPECT_FALSE(Accepted({.kind = static_cast<PieceKind>(4)}));
  EXPECT_FALSE(Accepted({.kind = PieceKind::kHello, .frame_bytes = 1, .frame_part = 1}));
  EXPECT_FALSE(Accepted({.frame_bytes = kMaxFrameBytes + 1, .frame_part = 1}));
  EXPECT_FALSE(Accepted({.frame_bytes = 5, .frame_offset = 4, .frame_part = 2}));
  EXPECT_FALSE(Accepted({.frame_bytes = 5, .frame_offset = ~0u, .frame_part = 2}));
  EXPECT_FALSE(Accepted({.frame_bytes = 5}));
  EXPECT_FALSE(Accepted({.payload_bytes = kMaxPayloadBytes + 1}));
  EXPECT_TRUE(Accepted({.frame_bytes = 5, .frame_part = 2, .payload_bytes = 5}));
  EXPECT_FALSE(
      DecodePieceHeader(Encode({.frame_bytes = 5, .frame_part = 2, .payload_bytes = 5}), 5).ok());
  EXPECT_FALSE(DecodePieceHeader(Encode({.payload_bytes = 5}), 4).ok());
  EXPECT_FALSE(DecodePieceHeader(ByteSpan(Encode({})).first(kPieceHeaderBytes - 1), 0).ok());
  EXPECT_FALSE(DecodePieceHeader({}, 0).ok());
}

TEST(PieceTest, SurvivesNoise) {
  std::mt19937_64 random(3);
  const std::vector<std::byte> good =
      Encode({.frame_bytes = 8, .frame_part = 8, .payload_bytes = 64});
  for (int i = 0; i < 100'000; ++i) {
    std::vector<std::byte> bytes = good;
    for (int flips = 1 + i % 3; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    const auto decoded = DecodePieceHeader(bytes, 64);
    if (!decoded.ok()) continue;
    EXPECT_LE(decoded->frame_offset + decoded->frame_part, kMaxFrameBytes);
    EXPECT_LE(decoded->payload_bytes, kMaxPayloadBytes);
  }
}

TEST(MessageHeaderTest, ComesBackAsItWent) {
  std::array<std::byte, kMessageHeaderBytes> bytes;
  EncodeMessageHeader({.frame_bytes = kMaxFrameBytes, .payload_bytes = kMaxPayloadBytes}, bytes);
  const auto decoded = DecodeMessageHeader(bytes);
  ASSERT_TRUE(decoded.ok() && decoded->has_value()) << decoded.status();
  EXPECT_EQ((*decoded)->kind, MessageKind::kData);
  EXPECT_EQ((*decoded)->frame_bytes, kMaxFrameBytes);
  EXPECT_EQ((*decoded)->payload_bytes, kMaxPayloadBytes);
}

TEST(MessageHeaderTest, KnowsAStrangerByHisFirstByte) {
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeMessageHeader(AsBytes("G")).status()));
  std::array<std::byte, kMessageHeaderBytes> bytes;
  EncodeMessageHeader({.kind = MessageKind::kHello}, bytes);
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto part = DecodeMessageHeader(ByteSpan(bytes).first(length));
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_FALSE(part->has_value());
  }
}

TEST(InboundMessageTest, GathersAFrameThatComesInParts) {
  InboundMessage inbound;
  EXPECT_TRUE(inbound.Take({.frame_bytes = 5, .frame_part = 3}, AsBytes("abc")).ok());
  EXPECT_FALSE(inbound.frame_arrived());
  const PieceHeader last{.frame_bytes = 5, .frame_offset = 3, .frame_part = 2, .payload_bytes = 0};
  EXPECT_TRUE(inbound.Take(last, AsBytes("de")).ok());
  EXPECT_TRUE(inbound.frame_arrived());
  EXPECT_EQ(AsText(inbound.frame()), "abcde");
}

TEST(InboundMessageTest, TellsEachFrame) {
  InboundMessage inbound;
  const PieceHeader piece{.frame_bytes = 2, .frame_part = 2, .payload_bytes = 10};
  EXPECT_TRUE(inbound.Take(piece, AsBytes("ab")).ok());
  EXPECT_TRUE(inbound.frame_arrived());
  EXPECT_EQ(AsText(inbound.frame()), "ab");
  EXPECT_TRUE(inbound.Take({.sequence = 1}, {}).ok());
  EXPECT_TRUE(inbound.frame_arrived());
  EXPECT_TRUE(inbound.frame().empty());
}

TEST(InboundMessageTest, RefusesWhatDoesNotComeNext) {
  const PieceHeader first{.frame_bytes = 10, .frame_part = 4, .payload_bytes = 10};
  const std::vector<PieceHeader> wrong = {
      {.frame_bytes = 10, .frame_part = 4, .payload_bytes = 10},
      {.frame_bytes = 10, .frame_offset = 5, .frame_part = 4, .payload_bytes = 10},
      {.frame_bytes = 10, .frame_offset = 4, .frame_part = 4, .payload_bytes = 11},
      {.frame_bytes = 11, .frame_offset = 4, .frame_part = 4, .payload_bytes = 10},
      {.frame_bytes = 10, .frame_offset = 4, .frame_part = 4, .sequence = 1, .payload_bytes = 10},
  };
  for (const PieceHeader& next : wrong) {
    InboundMessage inbound;
    ASSERT_TRUE(inbound.Take(first, AsBytes("abcd")).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(inbound.Take(next, AsBytes("efgh"))));
  }
}

TEST(LandingWriterTest, FillsUnevenPiecesInOrder) {
  std::vector<std::byte> memory(100);
  std::vector<std::byte> payload(100);
  FillPattern(1, MutableByteSpan(payload));
  const MutableByteSpan whole(memory);
  size_t seen = 0;
  int landed = 0;
  Landing landing;
  landing.pieces = {whole.first(0), whole.first(33), whole.subspan(33, 1), whole.subspan(34)};
  landing.progress = [&](ByteSpan bytes) {
    EXPECT_EQ(bytes.data(), memory.data() + seen);
    seen += bytes.size();
  };
  landing.landed = [&](const absl::Status& status) { landed += status.ok() ? 1 : 100; };
  LandingWriter writer(std::move(landing), 100);
  for (size_t at = 0; at < 100; at += 10) writer.Write(ByteSpan(payload).subspan(at, 10));
  EXPECT_EQ(seen, 100u);
  writer.Finish(absl::OkStatus());
  writer.Finish(absl::InternalError("again"));
  EXPECT_EQ(landed, 1);
  EXPECT_TRUE(HasPattern(1, memory));
}

TEST(LandingWriterTest, ShowsTheNextPlaces) {
  std::vector<std::byte> memory(100);
  const MutableByteSpan whole(memory);
  std::vector<size_t> seen;
  Landing landing;
  landing.pieces = {whole.first(0), whole.first(30), whole.subspan(30, 0), whole.subspan(30)};
  landing.progress = [&](ByteSpan bytes) { seen.push_back(bytes.size()); };
  LandingWriter writer(std::move(landing), 100);
  std::array<iovec, 4> places;
  ASSERT_EQ(writer.NextPlaces(50, places), 2u);
  EXPECT_EQ(places[0].iov_base, memory.data());
  EXPECT_EQ(places[0].iov_len, 30u);
  EXPECT_EQ(places[1].iov_base, memory.data() + 30);
  EXPECT_EQ(places[1].iov_len, 20u);
  EXPECT_EQ(writer.NextPlaces(50, std::span(places).first(1)), 1u);
  writer.Written(40);
  ASSERT_EQ(writer.NextPlaces(1000, places), 1u);
  EXPECT_EQ(places[0].iov_base, memory.data() + 40);
  EXPECT_EQ(places[0].iov_len, 60u);
  writer.Written(60);
  EXPECT_EQ(writer.NextPlaces(1000, places), 0u);
  EXPECT_EQ(seen, (std::vector<size_t>{30, 10, 60}));
  EXPECT_EQ(LandingWriter(Landing(), 10).NextPlaces(10, places), 0u);
}

TEST(LandingWriterDeathTest, StopsAtALandingOfTheWrongSize) {
  std::vector<std::byte> memory(10);
  Landing landing;
  landing.pieces.push_back(MutableByteSpan(memory));
  EXPECT_DEATH(LandingWriter(std::move(landing), 11), "landing of 10 bytes for a payload of 11");
}

TEST(SocketAddressTest, ReadsBothFamilies) {
  for (const char* const text : {"127.0.0.1:80", "[::1]:65535", "[fd00::2]:1"}) {
    const auto address = ParseSocketAddress(text, /*numeric_only=*/true);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(FormatSocketAddress(address->storage), text);
  }
  for (const char* const text :
       {"", ":", ":80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "::1:80",
        "[::1]", "[]:80", "[::1:80", "localhost:80"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseSocketAddress(text, true).status())) << text;
  }
  EXPECT_TRUE(ParseSocketAddress("localhost:80", /*numeric_only=*/false).ok());
}

TEST(EventLoopTest, RunsSubmittedWorkAtItsEnd) {
  std::atomic<int> ran{0};
  EventLoop loop({.thread_name = "test"});
  ASSERT_TRUE(loop.Start(nullptr).ok());
  EventLoop::Work last = [&] { ++ran; };
  // Submitted from the loop's own last turn.
  loop.Post([&] { loop.Submit(last); });
  while (ran == 0) std::this_thread::yield();
  loop.Stop();
  loop.Stop();
  EventLoop::Work late = [&] { ++ran; };
  EXPECT_FALSE(loop.Submit(late));
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace terrace
