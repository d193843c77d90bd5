// What only real UCX peers can show: nonsense, silence, lanes.
#include "cluster/ucx_transport.h"

#include <unistd.h>

#include <random>

#include "cluster/piece.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/raw_ucx_peer.h"
#include "tests/cluster/transport_fabric.h"
#include "tests/cluster/transport_peer.h"

namespace terrace {
namespace {

using ::testing::IsEmpty;

constexpr absl::Duration kTimeout = absl::Seconds(10);

class UcxTransportTest : public testing::Test {
 protected:
  void Start(uint32_t max_queued_messages = 4096, uint32_t max_connections = 1024) {
    server_ = fabric_.Make(&peer_, max_queued_messages, max_connections);
    const auto bound = server_->Listen("127.0.0.1:0");
    ASSERT_TRUE(bound.ok()) << bound.status();
    address_ = *bound;
  }
  void TearDown() override {
    if (server_) server_->Shutdown(absl::Seconds(5));
    EXPECT_THAT(peer_.complaints(), IsEmpty());
    EXPECT_EQ(peer_.open_count(), 0u);
  }
  void ExpectStillServes() {
    TransportPeer client_peer;
    auto client = fabric_.Make(&client_peer);
    const auto connection = client->Connect(address_, kTimeout);
    ASSERT_TRUE(connection.ok());
    ASSERT_TRUE(client_peer.WaitOpen(*connection)) << client_peer.closed_with(*connection);
    client->Shutdown(absl::Seconds(5));
  }

  TransportFabric fabric_{FabricKind::kUcx};
  TransportPeer peer_;
  std::unique_ptr<Transport> server_;
  std::string address_;
};

TEST_F(UcxTransportTest, FamiliesDoNotMix) {
  Start();
  const ConnectionId other = *server_->Connect("[fd00::1]:1", kTimeout);
  ASSERT_TRUE(peer_.WaitClosed(other));
  EXPECT_TRUE(absl::IsFailedPrecondition(peer_.closed_with(other)));
}

TEST_F(UcxTransportTest, TellsItsLanes) {
  Start();
  ExpectStillServes();
  EXPECT_THAT(server_->Stats().profile, testing::StartsWith("rdma (tcp/"));
}

constexpr uint32_t kEager = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;

std::vector<std::byte> Encoded(const PieceHeader& header, size_t frame_part = 0) {
  std::vector<std::byte> bytes(kPieceHeaderBytes + frame_part);
  EncodePieceHeader(header, std::span(bytes).first<kPieceHeaderBytes>());
  return bytes;
}

// One way to be wrong: what to send after (or without) a proper greeting.
struct Nonsense {
  bool greet;
  std::vector<std::byte> header;
  size_t data_bytes = 0;
};

std::vector<Nonsense> AllNonsense() {
  std::vector<Nonsense> all;
  all.push_back({false, {}});
  all.push_back({false, std::vector<std::byte>(kPieceHeaderBytes)});
  all.push_back({false, Encoded({.frame_bytes = 4, .frame_part = 4}, 4)});  // data before hello
  all.push_back({true, Encoded({.kind = PieceKind::kHello})});
  all.push_back({true, Encoded({.kind = PieceKind::kWelcome})});
  all.push_back({true, Encoded({.frame_bytes = 4, .frame_part = 4}, 3)});
  all.push_back({true, Encoded({.frame_bytes = 4, .frame_part = 4, .sequence = 1}, 4)});
  all.push_back({true, Encoded({.frame_bytes = 1u << 31, .frame_part = 4}, 4)});
  all.push_back({true, Encoded({.payload_bytes = 1ull << 40}), 10});
  all.push_back({true, Encoded({.payload_bytes = 100}), 50});
  all.push_back({true, Encoded({.frame_bytes = 8, .frame_part = 4, .payload_bytes = 50}, 4), 50});
  all.push_back({true, Encoded({.frame_bytes = 8, .frame_offset = 4, .frame_part = 4}, 4)});
  std::mt19937 random(11);
  for (int i = 0; i < 20; ++i) {
    std::vector<std::byte> header = Encoded({.payload_bytes = 100});
    header[random() % 24] ^= static_cast<std::byte>(1 + random() % 255);
    all.push_back({true, std::move(header), 100});
  }
  return all;
}

TEST_F(UcxTransportTest, ClosesThoseWhoTalkNonsense) {
  Start();
  TransportPeer honest_peer;
  auto honest = fabric_.Make(&honest_peer);
  const ConnectionId honest_connection = *honest->Connect(address_, kTimeout);
  ASSERT_TRUE(honest_peer.WaitOpen(honest_connection));
  uint64_t malformed = 0;
  for (const Nonsense& nonsense : AllNonsense()) {
    RawUcxPeer liar(address_);
    if (nonsense.greet)
      liar.Send(kPieceMessageId, Encoded({.kind = PieceKind::kHello}), {}, kEager);
    liar.Send(kPieceMessageId, nonsense.header, std::vector<std::byte>(nonsense.data_bytes),
              kEager);
    ASSERT_TRUE(liar.WaitFailed()) << malformed;
    EXPECT_EQ(server_->Stats().malformed, ++malformed);
  }
  const std::vector<std::byte> payload(1 << 20);
  honest->Send(honest_connection, {.payload = {payload}, .sent = honest_peer.CountSent()});
  ASSERT_TRUE(honest_peer.WaitSent(1));
  EXPECT_TRUE(honest_peer.sent()[0].ok());
  EXPECT_EQ(server_->Stats().connections, 1u);
  honest->Shutdown(absl::Seconds(5));
}

TEST_F(UcxTransportTest, IgnoresUnknownAndAnonymousMessages) {
  Start();
  RawUcxPeer stranger(address_);
  stranger.Send(kPieceMessageId, Encoded({.kind = PieceKind::kHello}), {}, kEager);
  ASSERT_TRUE(peer_.WaitAccepted(1));
  for (const unsigned id : {0u, 9u, 1000u, 0xfffeu}) stranger.Send(id, Encoded({}), {}, kEager);
  stranger.Send(kPieceMessageId, Encoded({}), {}, UCP_AM_SEND_FLAG_EAGER);
  stranger.Send(kPieceMessageId, Encoded({.frame_bytes = 3, .frame_part = 3}, 3), {}, kEager);
  ASSERT_TRUE(peer_.WaitMessages(1));
  EXPECT_EQ(server_->Stats().malformed, 1u);
  EXPECT_FALSE(stranger.failed());
}

TEST_F(UcxTransportTest, GivesTheSilentNoPlace) {
  Start(4096, /*max_connections=*/1);
  {
    RawUcxPeer silent(address_);
    ASSERT_TRUE(silent.WaitFailed());  // after the greeting timeout
  }
  ExpectStillServes();
}

TEST(UcxContextTest, WantsADeviceOrBeTold) {
  unsetenv("UCX_TLS");
  const auto context = UcxContext::Create();
  if (context.ok()) {
    EXPECT_THAT((*context)->version(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  } else {
    EXPECT_TRUE(absl::IsUnavailable(context.status())) << context.status();
    EXPECT_THAT(std::string(context.status().message()), testing::StartsWith("no RDMA device"));
  }
}

}  // namespace
}  // namespace terrace
