// The client against a node that lies, falls silent or goes away: never wrong bytes, never a
// call that does not end.
#include <atomic>
#include <thread>

#include "client/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/checksum.h"
#include "proto/clock.h"
#include "tests/client/fake_node.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kQuiet = absl::Milliseconds(150);  // client.h: to become quiet
// Tests share their machine: this much more is still no hang.
constexpr absl::Duration kSlack = absl::Milliseconds(500);

class FaultsTest : public ::testing::Test {
 protected:
  FaultsTest() { node_.Store(key_, bytes_); }

  Operation GetOne(absl::Duration timeout = absl::Seconds(30)) {
    return client_->Get(node_.ns(), {{key_, {MutableByteSpan(landed_)}}}, {timeout});
  }
  BlockResult Result(const Operation& operation) {
    operation.Wait();
    return operation.results()[0];
  }
  // A Get that succeeds, possibly after the client has reconnected.
  void AwaitRecovery() {
    const absl::Duration until = Clock::Real()->Now() + absl::Seconds(30);
    while (Result(GetOne()).outcome != Outcome::kOk && Clock::Real()->Now() < until) {
      std::this_thread::yield();
    }
    EXPECT_EQ(Result(GetOne()).outcome, Outcome::kOk);
    EXPECT_EQ(landed_, bytes_);
  }

  FakeNode node_;
  const BlockKey key_{node_.ns().id, Sha256(AsBytes("block")), 0};
  const std::vector<std::byte> bytes_ = PatternBytes(key_, node_.ns().shape.length);
  std::vector<std::byte> landed_ = std::vector<std::byte>(node_.ns().shape.length);
  std::unique_ptr<Client> client_ = node_.Connect();
};

TEST_F(FaultsTest, FlippedBitIsCorrupt) {
  for (size_t at : {size_t{0}, bytes_.size() / 2, bytes_.size() - 1}) {
    node_.set_alter([at](FakeReply* reply) { reply->bytes[at] ^= std::byte{1}; });
    const BlockResult result = Result(GetOne());
    EXPECT_EQ(result.outcome, Outcome::kCorrupt);
    EXPECT_THAT(result.message, HasSubstr("fails its checksum"));
  }
  EXPECT_EQ(client_->Stats().corrupt, 3u);
  node_.set_alter(nullptr);
  EXPECT_EQ(Result(GetOne()).outcome, Outcome::kOk);
}

TEST_F(FaultsTest, AnotherBlocksBytesAreCorrupt) {
  // Self-consistent in every way, but not what was asked for.
  const auto answer_with = [&](BlockKey key, uint64_t layout, BlockShape shape) {
    const std::vector<std::byte> bytes = PatternBytes(key, shape.length);
    Envelope envelope{key, 1, layout, shape, Codec::kRaw, {}, {}};
    envelope.checksums.resize(shape.segments);
    SegmentChecksummer(shape.segment_bytes(), envelope.checksums).Update(bytes);
    FakeReply answer;
    answer.bytes = bytes;
    answer.frame.envelope.resize(EnvelopeBytes(shape.segments, 0));
    envelope.EncodeTo(answer.frame.envelope);
    node_.set_alter([answer](FakeReply* reply) {
      reply->bytes = answer.bytes;
      reply->frame.envelope = answer.frame.envelope;
    });
    return Result(GetOne());
  };
  const Namespace ns = node_.ns();
  EXPECT_EQ(answer_with(key_, ns.layout_id, ns.shape).outcome, Outcome::kOk);
  BlockKey other = key_;
  other.digest.bytes[0] ^= 1;
  EXPECT_THAT(answer_with(other, ns.layout_id, ns.shape).message, HasSubstr("another key"));
  other = key_;
  other.ns.value = 999;
  EXPECT_THAT(answer_with(other, ns.layout_id, ns.shape).message, HasSubstr("another key"));
  other = key_;
  other.shard = 1;
  EXPECT_THAT(answer_with(other, ns.layout_id, ns.shape).message, HasSubstr("another key"));
  EXPECT_THAT(answer_with(key_, ns.layout_id + 1, ns.shape).message, HasSubstr("layout"));
  EXPECT_THAT(answer_with(key_, ns.layout_id, {ns.shape.length, 2}).message, HasSubstr("shape"));
  EXPECT_THAT(answer_with(key_, ns.layout_id, {ns.shape.length / 2, 4}).message,
              HasSubstr("shape"));
  EXPECT_EQ(client_->Stats().corrupt, 6u);
}

TEST_F(FaultsTest, TruncatedOrMissingBytesAreCorrupt) {
  node_.set_alter([](FakeReply* reply) { reply->bytes.resize(reply->bytes.size() / 2); });
  EXPECT_THAT(Result(GetOne()).message, HasSubstr("bytes came"));
  node_.set_alter([](FakeReply* reply) { reply->bytes.clear(); });
  EXPECT_EQ(Result(GetOne()).outcome, Outcome::kCorrupt);
  node_.set_alter([](FakeReply* reply) { reply->frame.envelope.resize(10); });
  EXPECT_THAT(Result(GetOne()).message, HasSubstr("envelope"));
  node_.set_alter([](FakeReply* reply) { reply->frame.envelope[100] ^= std::byte{4}; });
  EXPECT_THAT(Result(GetOne()).message, HasSubstr("checksum mismatch"));
}

TEST_F(FaultsTest, NodeThatBreaksTheProtocolLosesTheConnection) {
  node_.set_alter([](FakeReply* reply) { reply->frame.index = 400; });
  EXPECT_EQ(Result(GetOne()).outcome, Outcome::kMiss);
  node_.set_alter(nullptr);
  AwaitRecovery();
  EXPECT_GE(client_->Stats().reconnects, 1u);
}

TEST_F(FaultsTest, SilentNodeEndsByTheDeadline) {
  node_.Hold();
  const absl::Duration begin = Clock::Real()->Now();
  const BlockResult result = Result(GetOne(absl::Milliseconds(100)));
  const absl::Duration took = Clock::Real()->Now() - begin;
  EXPECT_EQ(result.outcome, Outcome::kTimeout);
  EXPECT_GE(took, absl::Milliseconds(100));
  EXPECT_LE(took, absl::Milliseconds(100) + kQuiet + kSlack);
  EXPECT_EQ(client_->Stats().timeouts, 1u);
  const Chain chain = *Chain::FromTokens(node_.ns(), std::vector<uint32_t>(16));
  auto match = client_->Match(chain, {.timeout = absl::Milliseconds(50)});
  EXPECT_EQ(match->blocks, 0u);
  EXPECT_TRUE(match->ask_again);
  Operation put =
      client_->Put(node_.ns(), {{chain.key(0), {ByteSpan(bytes_)}, {}}}, {absl::Milliseconds(50)});
  EXPECT_EQ(Result(put).outcome, Outcome::kTimeout);
}

TEST_F(FaultsTest, LateReplyNeverWritesIntoReusedMemory) {
  node_.Hold();
  EXPECT_EQ(Result(GetOne(absl::Milliseconds(50))).outcome, Outcome::kTimeout);
  const std::vector<std::byte> mine(landed_.size(), std::byte{0x55});
  landed_ = mine;  // the caller's again
  node_.AwaitHeld(1);
  node_.Unhold();  // the reply comes now
  std::vector<std::byte> other(bytes_.size());
  Operation next =
      client_->Get(node_.ns(), {{key_, {MutableByteSpan(other)}}}, {absl::Seconds(30)});
  EXPECT_EQ(Result(next).outcome, Outcome::kOk);  // arrived behind the late one
  EXPECT_EQ(landed_, mine);
  EXPECT_EQ(node_.cancels(), 1u);
}

TEST_F(FaultsTest, LateLeaseGoesBack) {
  const Chain chain = *Chain::FromTokens(node_.ns(), std::vector<uint32_t>(16));
  node_.Store(chain.key(0), PatternBytes(chain.key(0), node_.ns().shape.length));
  node_.Hold();
  MatchOptions options;
  options.timeout = absl::Milliseconds(50);
  options.lease = absl::Seconds(5);
  EXPECT_TRUE(client_->Match(chain, options)->ask_again);
  node_.AwaitHeld(1);
  node_.Unhold();
  options.timeout = absl::Seconds(30);
  options.lease = absl::ZeroDuration();
  EXPECT_EQ(client_->Match(chain, options)->blocks, 1u);
  EXPECT_EQ(client_->Match(chain, options)->blocks, 1u);  // behind the release
  EXPECT_EQ(node_.releases(), 1u);
}

TEST_F(FaultsTest, ConnectionLostInTheMiddleIsAMiss) {
  node_.Hold();
  Operation get = GetOne();
  node_.AwaitHeld(1);
  node_.CloseConnections();
  EXPECT_EQ(Result(get).outcome, Outcome::kMiss);
  node_.Unhold();
  AwaitRecovery();
}

TEST_F(FaultsTest, SessionLostIsAMissAndComesBack) {
  node_.Hold();
  Operation get = GetOne();
  node_.AwaitHeld(1);
  node_.Restart(/*forget=*/false);
  EXPECT_EQ(Result(get).outcome, Outcome::kMiss);
  node_.Unhold();
  AwaitRecovery();
  EXPECT_EQ(client_->Stats().namespace_epoch, 0u);
}

TEST_F(FaultsTest, RefusedTokenBringsAnotherSession) {
  node_.set_hello_status(WireStatus::kUnauthenticated);
  node_.CloseConnections();
  AwaitRecovery();
  EXPECT_GE(node_.hellos(), 3u);
}

TEST_F(FaultsTest, RefusedValueIsNotAnError) {
  BlockKey key = key_;
  key.digest.bytes[5] ^= 1;
  const std::vector<std::byte> bytes = PatternBytes(key, bytes_.size());
  const auto put_with = [&](WireStatus status) {
    node_.set_value_status(status);
    return Result(client_->Put(node_.ns(), {{key, {ByteSpan(bytes)}, {}}}, {absl::Seconds(30)}));
  };
  EXPECT_EQ(put_with(WireStatus::kChecksumMismatch).outcome, Outcome::kCorrupt);
  EXPECT_EQ(put_with(WireStatus::kNoSpace).outcome, Outcome::kNoSpace);
  EXPECT_EQ(put_with(WireStatus::kForeignLayout).outcome, Outcome::kRefused);
  EXPECT_EQ(put_with(WireStatus::kBadRequest).outcome, Outcome::kInvalid);
  EXPECT_TRUE(put_with(WireStatus::kExists).existed);
}

TEST_F(FaultsTest, CancelTellsHowMuchCame) {
  Operation whole = GetOne();
  whole.Wait();
  EXPECT_EQ(whole.Cancel(), 1u);  // harmless when done
  node_.Hold();
  Operation get = GetOne();
  node_.AwaitHeld(1);
  EXPECT_EQ(get.Cancel(), 0u);
  EXPECT_TRUE(get.done());
  EXPECT_EQ(get.results()[0].outcome, Outcome::kCancelled);
  node_.Unhold();
  EXPECT_EQ(Result(GetOne()).outcome, Outcome::kOk);  // behind the Cancel
  EXPECT_EQ(node_.cancels(), 1u);
}

TEST_F(FaultsTest, ClosingTheClientEndsWhatIsInFlight) {
  node_.Hold();
  Operation get = GetOne();
  node_.AwaitHeld(1);
  client_.reset();
  ASSERT_TRUE(get.done());
  EXPECT_EQ(get.results()[0].outcome, Outcome::kCancelled);
  EXPECT_EQ(get.Cancel(), 0u);
}

// Bytes are landing when the node freezes: the memory must be given up all the same.
TEST_F(FaultsTest, TransferThatStallsIsCutAfterItsDeadline) {
  constexpr size_t kBlocks = 128;
  std::vector<std::byte> memory(kBlocks * bytes_.size());
  std::vector<GetRequest> gets;
  for (size_t i = 0; i < kBlocks; ++i) {
    MutableByteSpan slot = MutableByteSpan(memory).subspan(i * bytes_.size(), bytes_.size());
    gets.push_back({key_, {slot}});
  }
  const uint64_t before = node_.client_transport()->Stats().bytes_received;
  Operation get = client_->Get(node_.ns(), std::move(gets), {absl::Milliseconds(300)});
  while (node_.client_transport()->Stats().bytes_received == before && !get.done()) {
    std::this_thread::yield();
  }
  node_.Freeze(true);
  const absl::Duration begin = Clock::Real()->Now();
  get.Wait();
  EXPECT_LE(Clock::Real()->Now() - begin, absl::Milliseconds(300) + kQuiet + kSlack);
  const std::vector<std::byte> frozen = memory;
  node_.Freeze(false);
  AwaitRecovery();
  EXPECT_EQ(memory, frozen);
}

}  // namespace
}  // namespace terrace
