// The data plane of a whole node, driven frame by frame.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "fmt/format.h"
#include "proto/clock.h"
#include "tests/cache_node/node_fixture.h"

namespace terrace {
namespace {

constexpr uint32_t kBlockBytes = 64 << 10;
constexpr uint32_t kSegments = 4;

constexpr const char* kTransports[] = {"loopback", "tcp"};

class DataPlaneTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { StartNode(SmallNode()); }

  void StartNode(const NodeOptions& options) {
    client_.reset();
    session_.reset();
    node_.reset();
    wires_ = std::string_view(GetParam()) == "tcp" ? Wires::Tcp() : Wires::Loopback();
    NodeHooks hooks;
    hooks.make_transport = [this](TransportHandler* handler) { return wires_->Make(handler); };
    absl::StatusOr<std::unique_ptr<Node>> node = Node::Start(options, hooks);
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
    channel_ = PlainChannel(node_->addresses().control);
    session_ = std::make_unique<ControlSession>(channel_);
    ASSERT_TRUE(session_->ok()) << session_->status().error_message();
    ASSERT_TRUE(session_->OpenNamespace("test", kBlockBytes, kSegments, &ns_).ok());
    client_ = NewClient();
    ASSERT_TRUE(client_->Hello(session_->token()));
  }

  std::unique_ptr<FrameClient> NewClient() {
    return std::make_unique<FrameClient>(wires_.get(), node_->addresses().data.front());
  }

  NamespaceId ns() const { return {ns_.id()}; }
  ReserveFrame ReserveOf(const std::vector<WireKey>& keys, uint32_t deadline_ms = 0) const {
    ReserveFrame frame{ns(), deadline_ms, {}};
    for (const WireKey& key : keys) {
      frame.items.push_back({key, {kBlockBytes, kSegments}, 0, 0});
    }
    return frame;
  }
  Envelope EnvelopeOf(const WireKey& key, ByteSpan value) const {
    return MakeEnvelope(ns(), key, ns_.layout_id(), kSegments, value);
  }

  // A put without Reserve, its envelope in the frame.
  static PutFrame PutOf(const Envelope& envelope) {
    const ReserveItem item{{envelope.key.digest, envelope.key.shard},
                           envelope.shape,
                           envelope.metadata.depth,
                           static_cast<uint16_t>(envelope.metadata.opaque.size())};
    return {envelope.key.ns, 10'000, item, Encoded(envelope)};
  }
  uint64_t ReserveOne(FrameClient* client, const WireKey& key, uint32_t deadline_ms = 0) {
    auto reply = client->Call<ReserveReplyFrame>(1, ReserveOf({key}, deadline_ms));
    if (!reply || reply->items.at(0).status != WireStatus::kOk) return 0;
    return reply->items[0].reservation;
  }
  WireStatus Put(FrameClient* client, const WireKey& key) {
    const uint64_t place = ReserveOne(client, key);
    EXPECT_NE(place, 0);
    const std::vector<std::byte> value = PatternValue(key, kBlockBytes);
    auto reply = client->Call<PutReplyFrame>(
        2, ValueFrame{0, place, Encoded(EnvelopeOf(key, value))}, value);
    return reply ? reply->status : WireStatus::kUnauthenticated;
  }
  std::optional<Received> Get(FrameClient* client, const GetItem& item) {
    client->Send(3, GetFrame{ns(), 0, {item}});
    return client->Next();
  }
  WireStatus GetStatus(FrameClient* client, const WireKey& key) {
    std::optional<Received> reply = Get(client, {key});
    return reply ? std::get<BlockFrame>(reply->body).status : WireStatus::kUnauthenticated;
  }
  MatchReplyFrame Match(FrameClient* client, std::vector<WireKey> keys, uint32_t lease_ms = 0) {
    auto reply = client->Call<MatchReplyFrame>(4, MatchFrame{ns(), true, lease_ms, keys});
    return reply.value_or(MatchReplyFrame{WireStatus::kUnauthenticated, 0, {}});
  }

  control::v1::NodeStatus NodeStatus() {
    control::v1::NodeStatus status;
    grpc::ClientContext context;
    Prepare(&context, "");
    EXPECT_TRUE(control::v1::Admin::NewStub(channel_)->GetStatus(&context, {}, &status).ok());
    return status;
  }
  double Metric(const std::string& name) {
    control::v1::GetStatsReply stats;
    grpc::ClientContext context;
    Prepare(&context, "");
    EXPECT_TRUE(control::v1::Admin::NewStub(channel_)->GetStats(&context, {}, &stats).ok());
    return stats.values().contains(name) ? stats.values().at(name) : -1;
  }
  // Asks again until the node says so; each question is a round trip.
  bool Eventually(const std::function<bool()>& condition) {
    const absl::Duration deadline = Clock::Real()->Now() + FrameClient::kPatience;
    while (!condition()) {
      if (Clock::Real()->Now() > deadline) return false;
    }
    return true;
  }

  std::unique_ptr<Wires> wires_;
  std::unique_ptr<Node> node_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<ControlSession> session_;
  control::v1::OpenNamespaceReply ns_;
  std::unique_ptr<FrameClient> client_;
};

TEST_P(DataPlaneTest, PutThenGetReturnsTheSameBytes) {
  const WireKey key = TestKey(1);
  EXPECT_EQ(GetStatus(client_.get(), key), WireStatus::kMiss);
  ASSERT_EQ(Put(client_.get(), key), WireStatus::kOk);
  std::optional<Received> got = Get(client_.get(), {key});
  ASSERT_TRUE(got);
  const auto& block = std::get<BlockFrame>(got->body);
  EXPECT_EQ(block.status, WireStatus::kOk);
  EXPECT_EQ(got->payload, PatternValue(key, kBlockBytes));
  auto envelope = EnvelopeView::Parse(block.envelope);
  ASSERT_TRUE(envelope.ok()) << envelope.status();
  EXPECT_EQ(envelope->key(), (BlockKey{ns(), key.digest, key.shard}));
  EXPECT_EQ(envelope->layout_id(), ns_.layout_id());
  EXPECT_NE(envelope->generation(), 0);
}

TEST_P(DataPlaneTest, GetReturnsARangeOfSegments) {
  const WireKey key = TestKey(1);
  ASSERT_EQ(Put(client_.get(), key), WireStatus::kOk);
  std::optional<Received> got = Get(client_.get(), {key, 1, 2});
  ASSERT_TRUE(got);
  const std::vector<std::byte> value = PatternValue(key, kBlockBytes);
  const size_t segment = kBlockBytes / kSegments;
  EXPECT_TRUE(std::equal(got->payload.begin(), got->payload.end(), value.begin() + segment,
                         value.begin() + 3 * segment));
  for (const GetItem& wrong :
       {GetItem{key, 4, 1}, GetItem{key, 1, 4}, GetItem{key, 1, 0}, GetItem{key, 65535, 65535}}) {
    got = Get(client_.get(), wrong);
    ASSERT_TRUE(got);
    EXPECT_EQ(std::get<BlockFrame>(got->body).status, WireStatus::kBadRequest);
    EXPECT_TRUE(got->payload.empty());
  }
}

TEST_P(DataPlaneTest, ABatchIsAnsweredInOrder) {
  std::vector<WireKey> keys;
  GetFrame get{ns(), 0, {}};
  for (uint64_t i = 0; i < 300; ++i) {
    keys.push_back(TestKey(i));
    get.items.push_back({keys.back()});
    if (i % 3 != 0) {
      ASSERT_EQ(Put(client_.get(), keys.back()), WireStatus::kOk);
    }
  }
  client_->Send(9, get);
  for (uint64_t i = 0; i < 300; ++i) {
    std::optional<Received> got = client_->Next();
    ASSERT_TRUE(got) << i;
    const auto& block = std::get<BlockFrame>(got->body);
    EXPECT_EQ(got->request_id, 9);
    EXPECT_EQ(block.index, i);
    EXPECT_EQ(block.status, i % 3 == 0 ? WireStatus::kMiss : WireStatus::kOk);
    if (i % 3 != 0) {
      EXPECT_EQ(got->payload, PatternValue(keys[i], kBlockBytes));
    }
  }
}

TEST_P(DataPlaneTest, APutOfWhatIsThereIsASuccessWithoutTransfer) {
  const WireKey key = TestKey(1);
  ASSERT_EQ(Put(client_.get(), key), WireStatus::kOk);
  auto reply = client_->Call<ReserveReplyFrame>(1, ReserveOf({key}));
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->items.at(0).status, WireStatus::kExists);
  EXPECT_EQ(reply->items.at(0).reservation, 0);
}

TEST_P(DataPlaneTest, NothingWithoutAValidHello) {
  for (const FrameBody& body : std::initializer_list<FrameBody>{
           MatchFrame{ns(), true, 0, {TestKey(1)}}, GetFrame{ns(), 0, {{TestKey(1)}}},
           TouchFrame{ns(), {TestKey(1)}}, ReleaseFrame{1}, CancelFrame{}}) {
    auto stranger = NewClient();
    stranger->Send(1, body);
    EXPECT_TRUE(stranger->WaitUntilClosed());
    EXPECT_FALSE(stranger->Next());
  }
  auto stranger = NewClient();
  EXPECT_FALSE(stranger->Hello(SessionToken{1, 2, 3}));
  EXPECT_TRUE(stranger->WaitUntilClosed());
  EXPECT_EQ(Metric("terrace_hello_failed_total"), 1);
  // A second Hello on a good connection is malformed.
  client_->Send(0, HelloFrame{session_->token()});
  EXPECT_TRUE(client_->WaitUntilClosed());
}

TEST_P(DataPlaneTest, ASilentConnectionIsClosed) {
  auto silent = NewClient();
  EXPECT_TRUE(silent->WaitUntilClosed());
}

TEST_P(DataPlaneTest, ATokenDiesWithItsSession) {
  const SessionToken token = session_->token();
  session_->End();
  EXPECT_TRUE(client_->WaitUntilClosed());
  auto late = NewClient();
  EXPECT_FALSE(late->Hello(token));
  EXPECT_TRUE(late->WaitUntilClosed());
}

TEST_P(DataPlaneTest, AForeignNamespaceIsUnknown) {
  const NamespaceId foreign{ns_.id() + 1};
  auto match = client_->Call<MatchReplyFrame>(1, MatchFrame{foreign, true, 1000, {TestKey(1)}});
  ASSERT_TRUE(match);
  EXPECT_EQ(match->status, WireStatus::kUnknownNamespace);
  auto block = client_->Call<BlockFrame>(2, GetFrame{foreign, 0, {{TestKey(1)}}});
  ASSERT_TRUE(block);
  EXPECT_EQ(block->status, WireStatus::kUnknownNamespace);
  ReserveFrame reserve = ReserveOf({TestKey(1)});
  reserve.ns = foreign;
  auto reserved = client_->Call<ReserveReplyFrame>(3, reserve);
  ASSERT_TRUE(reserved);
  EXPECT_EQ(reserved->items.at(0).status, WireStatus::kUnknownNamespace);
  client_->Send(0, TouchFrame{foreign, {TestKey(1)}});
  EXPECT_EQ(GetStatus(client_.get(), TestKey(1)), WireStatus::kMiss);  // still being served
}

TEST_P(DataPlaneTest, AShapeThatIsNotTheNamespacesIsRefused) {
  for (const BlockShape& wrong : {BlockShape{kBlockBytes, 2}, BlockShape{kBlockBytes * 2, 4},
                                  BlockShape{0, 0}, BlockShape{0xffffffff, 256}}) {
    ReserveFrame frame = ReserveOf({TestKey(1), TestKey(2)});
    frame.items[0].shape = wrong;
    auto reply = client_->Call<ReserveReplyFrame>(1, frame);
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->items.at(0).status, WireStatus::kBadRequest);
    EXPECT_NE(reply->items.at(1).status, WireStatus::kBadRequest);
    client_->Send(1, CancelFrame{});
  }
  ReserveFrame frame = ReserveOf({TestKey(3)});
  frame.items[0].opaque_bytes = kMaxOpaqueBytes + 1;
  auto reply = client_->Call<ReserveReplyFrame>(1, frame);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->items.at(0).status, WireStatus::kBadRequest);
}

TEST_P(DataPlaneTest, AValueThatIsNotWhatWasReservedIsRefused) {
  const WireKey key = TestKey(1);
  const std::vector<std::byte> value = PatternValue(key, kBlockBytes);
  const Envelope good = EnvelopeOf(key, value);
  struct Case {
    const char* what;
    std::function<void(Envelope*, std::vector<std::byte>*)> spoil;
    WireStatus status;
  };
  const Case cases[] = {
      {"key", [](Envelope* e, auto*) { e->key.digest = TestKey(2).digest; },
       WireStatus::kBadRequest},
      {"namespace", [](Envelope* e, auto*) { ++e->key.ns.value; }, WireStatus::kBadRequest},
      {"shard", [](Envelope* e, auto*) { ++e->key.shard; }, WireStatus::kBadRequest},
      {"layout", [](Envelope* e, auto*) { ++e->layout_id; }, WireStatus::kForeignLayout},
      {"opaque", [](Envelope* e, auto*) { e->metadata.opaque = "x"; }, WireStatus::kBadRequest},
      {"segments",
       [&](Envelope* e, auto*) { *e = MakeEnvelope(e->key.ns, key, e->layout_id, 2, value); },
       WireStatus::kBadRequest},
      {"payload", [](Envelope*, auto* v) { v->resize(kBlockBytes / 2); }, WireStatus::kBadRequest},
      {"oversize", [](Envelope*, auto* v) { v->resize(kBlockBytes + 1); }, WireStatus::kBadRequest},
      {"checksum", [](Envelope* e, auto*) { e->checksums[3] ^= 1; }, WireStatus::kChecksumMismatch},
      {"bytes", [](Envelope*, auto* v) { (*v)[kBlockBytes - 1] ^= std::byte{1}; },
       WireStatus::kChecksumMismatch},
  };
  for (const bool behind : {false, true}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(fmt::format("{}, envelope {}", c.what, behind ? "behind" : "in the frame"));
      const uint64_t place = ReserveOne(client_.get(), key);
      ASSERT_NE(place, 0);
      Envelope envelope = good;
      std::vector<std::byte> bytes = value;
      c.spoil(&envelope, &bytes);
      ValueFrame frame{7, place, Encoded(envelope)};
      if (behind) {
        bytes.insert(bytes.end(), frame.envelope.begin(), frame.envelope.end());
        frame.envelope.clear();
      }
      auto reply = client_->Call<PutReplyFrame>(2, frame, bytes);
      ASSERT_TRUE(reply);
      EXPECT_EQ(reply->index, 7);
      EXPECT_EQ(reply->status, c.status);
      EXPECT_EQ(GetStatus(client_.get(), key), WireStatus::kMiss);
    }
  }
  EXPECT_EQ(Metric("terrace_checksum_mismatches_total"), 4);
  EXPECT_EQ(NodeStatus().reservations(), 0);
  EXPECT_EQ(Put(client_.get(), key), WireStatus::kOk);
}

TEST_P(DataPlaneTest, APutWithoutReserveFindsItsOwnPlace) {
  const WireKey key = TestKey(1);
  const std::vector<std::byte> value = PatternValue(key, kBlockBytes);
  const PutFrame frame = PutOf(EnvelopeOf(key, value));
  EXPECT_EQ(client_->Call<PutReplyFrame>(2, frame, value)->status, WireStatus::kOk);
  EXPECT_EQ(GetStatus(client_.get(), key), WireStatus::kOk);
  // A second one is thrown away, and the connection goes on behind its bytes.
  EXPECT_EQ(client_->Call<PutReplyFrame>(2, frame, value)->status, WireStatus::kExists);
  ASSERT_NE(ReserveOne(client_.get(), TestKey(2)), 0);
  const std::vector<std::byte> other = PatternValue(TestKey(2), kBlockBytes);
  const PutFrame pending = PutOf(EnvelopeOf(TestKey(2), other));
  EXPECT_EQ(client_->Call<PutReplyFrame>(2, pending, other)->status, WireStatus::kPending);
  client_->Send(1, CancelFrame{});
  EXPECT_EQ(client_->Call<PutReplyFrame>(2, pending, other)->status, WireStatus::kOk);
  EXPECT_EQ(NodeStatus().reservations(), 0);
}

TEST_P(DataPlaneTest, APutWithoutReserveIsJudgedLikeOneWith) {
  const WireKey key = TestKey(1);
  const std::vector<std::byte> value = PatternValue(key, kBlockBytes);
  const Envelope good = EnvelopeOf(key, value);
  const auto status_of = [&](const Envelope& envelope, const std::vector<std::byte>& bytes) {
    auto reply = client_->Call<PutReplyFrame>(2, PutOf(envelope), bytes);
    return reply ? reply->status : WireStatus::kUnauthenticated;
  };
  Envelope wrong = good;
  ++wrong.key.ns.value;
  EXPECT_EQ(status_of(wrong, value), WireStatus::kUnknownNamespace);
  wrong = good;
  ++wrong.layout_id;
  EXPECT_EQ(status_of(wrong, value), WireStatus::kForeignLayout);
  wrong = MakeEnvelope(ns(), key, good.layout_id, kSegments / 2, value);
  EXPECT_EQ(status_of(wrong, value), WireStatus::kBadRequest);
  wrong = good;
  wrong.checksums[1] ^= 1;
  EXPECT_EQ(status_of(wrong, value), WireStatus::kChecksumMismatch);
  std::vector<std::byte> longer = value;
  longer.resize(kBlockBytes + 1);
  EXPECT_EQ(status_of(good, longer), WireStatus::kBadRequest);
  PutFrame broken = PutOf(good);
  broken.envelope[100] ^= std::byte{1};
  EXPECT_EQ(client_->Call<PutReplyFrame>(2, broken, value)->status, WireStatus::kBadRequest);
  PutFrame other = PutOf(good);
  other.item.key = TestKey(2);
  EXPECT_EQ(client_->Call<PutReplyFrame>(2, other, value)->status, WireStatus::kBadRequest);
  EXPECT_EQ(GetStatus(client_.get(), key), WireStatus::kMiss);
  EXPECT_EQ(GetStatus(client_.get(), TestKey(2)), WireStatus::kMiss);
  EXPECT_EQ(NodeStatus().reservations(), 0);
  EXPECT_EQ(status_of(good, value), WireStatus::kOk);
}

TEST_P(DataPlaneTest, AnUnknownReservationIsRefused) {
  const WireKey key = TestKey(1);
  const std::vector<std::byte> value = PatternValue(key, kBlockBytes);
  auto reply =
      client_->Call<PutReplyFrame>(2, ValueFrame{0, 12345, Encoded(EnvelopeOf(key, value))}, value);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, WireStatus::kBadRequest);
  // A reservation is good for one value.
  const uint64_t place = ReserveOne(client_.get(), key);
  const ValueFrame frame{0, place, Encoded(EnvelopeOf(key, value))};
  EXPECT_EQ(client_->Call<PutReplyFrame>(2, frame, value)->status, WireStatus::kOk);
  EXPECT_EQ(client_->Call<PutReplyFrame>(2, frame, value)->status, WireStatus::kBadRequest);
}

TEST_P(DataPlaneTest, MalformedFramesCloseTheConnectionAndNothingElse) {
  std::mt19937 random(7);
  const std::vector<std::byte> good =
      Encode(1, MatchFrame{ns(), true, 1000, {TestKey(1), TestKey(2)}});
  int closed = 0;
  for (int i = 0; i < 40; ++i) {
    std::vector<std::byte> bytes;
    if (i % 2 == 0) {
      bytes.resize(1 + random() % 200);
      for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    } else {
      bytes.assign(good.begin(), good.begin() + random() % good.size());
      if (bytes.empty()) bytes.push_back(std::byte{0});
    }
    std::vector<std::byte> payload(i % 4 == 0 ? random() % 100'000 : 0);
    auto victim = NewClient();
    ASSERT_TRUE(victim->Hello(session_->token()));
    victim->SendRaw(bytes, payload);
    ASSERT_TRUE(victim->WaitUntilClosed()) << i;
    ++closed;
  }
  EXPECT_EQ(Metric("terrace_frames_malformed_total"), closed);
  EXPECT_EQ(Put(client_.get(), TestKey(1)), WireStatus::kOk);
}

TEST_P(DataPlaneTest, FramesThatOnlyNodesSendAreMalformed) {
  for (const FrameBody& body :
       std::initializer_list<FrameBody>{HelloReplyFrame{}, MatchReplyFrame{}, BlockFrame{},
                                        ReserveReplyFrame{}, PutReplyFrame{}}) {
    auto client = NewClient();
    ASSERT_TRUE(client->Hello(session_->token()));
    client->Send(1, body);
    EXPECT_TRUE(client->WaitUntilClosed());
  }
}

TEST_P(DataPlaneTest, APayloadWhereNoneBelongsIsMalformed) {
  client_->Send(1, MatchFrame{ns(), true, 0, {TestKey(1)}}, std::vector<std::byte>(5000));
  EXPECT_TRUE(client_->WaitUntilClosed());
}

TEST_P(DataPlaneTest, AConnectionThatDiesGivesItsPlacesBack) {
  auto writer = NewClient();
  ASSERT_TRUE(writer->Hello(session_->token()));
  ASSERT_NE(ReserveOne(writer.get(), TestKey(1)), 0);
  EXPECT_EQ(NodeStatus().reservations(), 1);
  auto pending = client_->Call<ReserveReplyFrame>(1, ReserveOf({TestKey(1)}));
  EXPECT_EQ(pending->items.at(0).status, WireStatus::kPending);
  writer->Close();
  writer.reset();
  EXPECT_TRUE(Eventually([&] { return NodeStatus().reservations() == 0; }));
  EXPECT_EQ(Put(client_.get(), TestKey(1)), WireStatus::kOk);
}

TEST_P(DataPlaneTest, DeathInMidPutPublishesNothing) {
  control::v1::OpenNamespaceReply big;
  constexpr uint32_t kBig = 8 << 20;
  ASSERT_TRUE(session_->OpenNamespace("big", kBig, 1, &big).ok());
  for (int i = 0; i < 5; ++i) {
    auto writer = NewClient();
    ASSERT_TRUE(writer->Hello(session_->token()));
    const WireKey key = TestKey(i);
    ReserveFrame reserve{{big.id()}, 0, {{key, {kBig, 1}, 0, 0}}};
    auto reply = writer->Call<ReserveReplyFrame>(1, reserve);
    ASSERT_TRUE(reply);
    ASSERT_EQ(reply->items.at(0).status, WireStatus::kOk);
    const std::vector<std::byte> value = PatternValue(key, kBig);
    Envelope envelope = MakeEnvelope({big.id()}, key, big.layout_id(), 1, value);
    writer->Send(2, ValueFrame{0, reply->items[0].reservation, Encoded(envelope)}, value);
    writer.reset();  // while bytes are on the way
    EXPECT_TRUE(Eventually([&] { return NodeStatus().reservations() == 0; }));
    auto block = client_->Call<BlockFrame>(3, GetFrame{{big.id()}, 0, {{key}}});
    ASSERT_TRUE(block);
    // Either all of it came through, or nothing is there.
    EXPECT_TRUE(block->status == WireStatus::kMiss || block->status == WireStatus::kOk);
  }
}

TEST_P(DataPlaneTest, AReservationExpires) {
  ASSERT_NE(ReserveOne(client_.get(), TestKey(1), /*deadline_ms=*/1), 0);
  EXPECT_TRUE(Eventually([&] { return NodeStatus().reservations() == 0; }));
  EXPECT_EQ(Metric("terrace_reservations_expired_total"), 1);
  EXPECT_EQ(Put(client_.get(), TestKey(1)), WireStatus::kOk);
}

TEST_P(DataPlaneTest, CancelGivesPlacesBack) {
  ASSERT_NE(ReserveOne(client_.get(), TestKey(1)), 0);
  client_->Send(1, CancelFrame{});
  EXPECT_EQ(Put(client_.get(), TestKey(1)), WireStatus::kOk);
}

TEST_P(DataPlaneTest, MatchReturnsTheLeadingRun) {
  ASSERT_EQ(Put(client_.get(), TestKey(1)), WireStatus::kOk);
  ASSERT_EQ(Put(client_.get(), TestKey(2)), WireStatus::kOk);
  ASSERT_EQ(Put(client_.get(), TestKey(4)), WireStatus::kOk);
  const MatchReplyFrame reply =
      Match(client_.get(), {TestKey(1), TestKey(2), TestKey(3), TestKey(4)});
  EXPECT_EQ(reply.status, WireStatus::kOk);
  EXPECT_EQ(reply.tiers, (std::vector<Tier>{Tier::kHost, Tier::kHost}));
  EXPECT_EQ(reply.lease, 0);
  client_->Send(0, TouchFrame{ns(), {TestKey(1), TestKey(2)}});
  EXPECT_TRUE(Match(client_.get(), {}).tiers.empty());
}

TEST_P(DataPlaneTest, LeasesAreReleasedByTheirOwnerByTimeAndWithTheSession) {
  ASSERT_EQ(Put(client_.get(), TestKey(1)), WireStatus::kOk);
  const auto referenced = [&] { return Metric("terrace_tier_referenced_blocks{tier=\"host\"}"); };

  MatchReplyFrame reply = Match(client_.get(), {TestKey(1)}, 20'000);
  ASSERT_NE(reply.lease, 0);
  EXPECT_EQ(referenced(), 1);
  // Another session cannot release it.
  ControlSession other(channel_);
  auto other_client = NewClient();
  ASSERT_TRUE(other_client->Hello(other.token()));
  other_client->Send(0, ReleaseFrame{reply.lease});
  EXPECT_EQ(GetStatus(other_client.get(), TestKey(1)), WireStatus::kOk);
  EXPECT_EQ(NodeStatus().leases(), 1);
  // Its owner can, twice as well.
  client_->Send(0, ReleaseFrame{reply.lease});
  client_->Send(0, ReleaseFrame{reply.lease});
  EXPECT_TRUE(Match(client_.get(), {TestKey(2)}).tiers.empty());
  EXPECT_EQ(referenced(), 0);
  // Time.
  ASSERT_NE(Match(client_.get(), {TestKey(1)}, 1).lease, 0);
  EXPECT_TRUE(Eventually([&] { return referenced() == 0; }));
  // The session.
  ASSERT_NE(Match(client_.get(), {TestKey(1)}, 20'000).lease, 0);
  session_->End();
  EXPECT_TRUE(Eventually([&] { return referenced() == 0; }));
  EXPECT_EQ(NodeStatus().leases(), 0);
}

TEST_P(DataPlaneTest, LeasesAreBounded) {
  NodeOptions options = SmallNode();
  options.limits.max_leases = 3;
  StartNode(options);
  ASSERT_EQ(Put(client_.get(), TestKey(1)), WireStatus::kOk);
  for (int i = 0; i < 3; ++i) EXPECT_NE(Match(client_.get(), {TestKey(1)}, 20'000).lease, 0);
  const MatchReplyFrame refused = Match(client_.get(), {TestKey(1)}, 20'000);
  EXPECT_EQ(refused.status, WireStatus::kOk);
  EXPECT_EQ(refused.lease, 0);
  EXPECT_EQ(refused.tiers.size(), 1);
}

TEST_P(DataPlaneTest, AReaderThatStopsReadingIsGivenUp) {
  std::vector<GetItem> items;
  for (uint64_t i = 0; i < 512; ++i) {
    ASSERT_EQ(Put(client_.get(), TestKey(i)), WireStatus::kOk);
    items.push_back({TestKey(i)});
  }
  auto reader = NewClient();
  ASSERT_TRUE(reader->Hello(session_->token()));
  reader->Stall(true);
  // Much more than any socket's buffer takes.
  for (uint64_t request = 1; request <= 4; ++request) {
    reader->Send(request, GetFrame{ns(), /*deadline_ms=*/200, items});
  }
  EXPECT_TRUE(Eventually([&] { return Metric("terrace_connections_overdue_total") >= 1; }));
  EXPECT_TRUE(Eventually([&] { return NodeStatus().connections() == 1; }));
  EXPECT_EQ(Metric("terrace_tier_referenced_blocks{tier=\"host\"}"), 0);
  reader->Stall(false);
}

// Blocks of request 5 that arrive before the answer to request 6. Gets are answered in order.
size_t BlocksBeforeRequest6(FrameClient* client) {
  size_t blocks = 0;
  std::optional<Received> received;
  while ((received = client->Next()) && received->request_id == 5) ++blocks;
  EXPECT_TRUE(received && received->request_id == 6);
  return blocks;
}

TEST_P(DataPlaneTest, CancelCallsOffWhatWasNotYetSent) {
  GetFrame get{ns(), 0, {}};
  for (uint64_t i = 0; i < 512; ++i) {
    ASSERT_EQ(Put(client_.get(), TestKey(i)), WireStatus::kOk);
    get.items.push_back({TestKey(i)});
  }
  client_->Stall(true);
  client_->Send(5, get);
  client_->Send(5, CancelFrame{});
  client_->Send(6, GetFrame{ns(), 0, {{TestKey(1)}}});
  client_->Stall(false);
  EXPECT_LT(BlocksBeforeRequest6(client_.get()), 512);
}

TEST_P(DataPlaneTest, NothingIsSentAfterTheDeadline) {
  GetFrame get{ns(), /*deadline_ms=*/1, {}};
  for (uint64_t i = 0; i < 512; ++i) {
    ASSERT_EQ(Put(client_.get(), TestKey(i)), WireStatus::kOk);
    get.items.push_back({TestKey(i)});
  }
  client_->Stall(true);
  client_->Send(5, get);
  EXPECT_TRUE(Eventually([&] { return Metric("terrace_frames_total{type=\"get\"}") == 1; }));
  client_->Send(6, GetFrame{ns(), 0, {{TestKey(1)}}});
  client_->Stall(false);
  const size_t sent = BlocksBeforeRequest6(client_.get());
  EXPECT_LT(sent, 512);
  EXPECT_EQ(Metric("terrace_gets_expired_total"), 512 - sent);
}

TEST_P(DataPlaneTest, TooManyRequestsAtATimeAreRefused) {
  std::vector<GetItem> items;
  for (uint64_t i = 0; i < 64; ++i) {
    ASSERT_EQ(Put(client_.get(), TestKey(i)), WireStatus::kOk);
    items.push_back({TestKey(i)});
  }
  client_->Stall(true);
  const uint32_t limit = session_->opened().limits().max_requests_in_flight();
  const uint32_t sent = limit + 40;
  for (uint32_t request = 1; request <= sent; ++request) {
    client_->Send(request, GetFrame{ns(), 0, items});
  }
  client_->Stall(false);
  uint64_t ok = 0, overloaded = 0;
  for (size_t i = 0; i < size_t{sent} * items.size(); ++i) {
    std::optional<Received> received = client_->Next();
    ASSERT_TRUE(received) << i;
    const WireStatus status = std::get<BlockFrame>(received->body).status;
    (status == WireStatus::kOk ? ok : overloaded) += 1;
    EXPECT_TRUE(status == WireStatus::kOk || status == WireStatus::kOverloaded);
  }
  EXPECT_GE(ok, limit * items.size());
  EXPECT_GT(overloaded, 0);
}

TEST_P(DataPlaneTest, SpaceIsMadeByEviction) {
  // Three times what the tier holds.
  const uint64_t blocks = 3 * (64 << 20) / kBlockBytes;
  for (uint64_t i = 0; i < blocks; ++i) {
    ASSERT_EQ(Put(client_.get(), TestKey(i)), WireStatus::kOk) << i;
  }
  EXPECT_EQ(GetStatus(client_.get(), TestKey(blocks - 1)), WireStatus::kOk);
  EXPECT_LE(Metric("terrace_tier_occupied_bytes{tier=\"host\"}"), 64 << 20);
}

TEST_P(DataPlaneTest, StoppingFinishesAndRefuses) {
  ASSERT_EQ(Put(client_.get(), TestKey(1)), WireStatus::kOk);
  ASSERT_NE(ReserveOne(client_.get(), TestKey(2)), 0);  // keeps the node busy
  std::thread stopper([this] { node_->Stop(); });
  control::v1::SessionEvent event;
  while (session_->Next(&event) && !event.has_goaway()) continue;
  EXPECT_TRUE(event.has_goaway());
  EXPECT_TRUE(Eventually([&] {
    const WireStatus status = GetStatus(client_.get(), TestKey(1));
    return status == WireStatus::kStopping;
  }));
  const std::vector<std::byte> value = PatternValue(TestKey(3), kBlockBytes);
  const PutFrame frame = PutOf(EnvelopeOf(TestKey(3), value));
  EXPECT_EQ(client_->Call<PutReplyFrame>(2, frame, value)->status, WireStatus::kStopping);
  client_->Send(1, CancelFrame{});  // the place is given back: the node is quiet
  stopper.join();
  EXPECT_TRUE(client_->WaitUntilClosed());
  while (session_->Next(&event)) EXPECT_TRUE(event.has_heartbeat());
}

INSTANTIATE_TEST_SUITE_P(Wires, DataPlaneTest, testing::ValuesIn(kTransports),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace terrace
