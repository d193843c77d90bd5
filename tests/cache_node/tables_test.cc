// Sessions, leases and namespaces over a real store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache_node/layout.h"
#include "cache_node/mover.h"
#include "cache_node/namespace_table.h"
#include "cache_node/session_table.h"
#include "tests/cache_node/frame_client.h"
#include "tests/cache_node/node_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr uint32_t kBlockBytes = 4096;

std::unique_ptr<TieredStore> MakeStore() {
  TieredStoreOptions options;
  options.host_bytes = 8 << 20;
  options.max_block_bytes = 1 << 20;
  absl::StatusOr<std::unique_ptr<TieredStore>> store = TieredStore::Create(options);
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

BlockKey PutBlock(TieredStore* store, NamespaceId ns, uint64_t number) {
  const WireKey wire = TestKey(number);
  const BlockKey key{ns, wire.digest, wire.shard};
  const BlockShape shape{kBlockBytes, 1};
  const uint16_t opaque = 0;
  const uint32_t depth = 0;
  auto results = store->Reserve({&key, 1}, {&shape, 1}, {&opaque, 1}, {&depth, 1});
  EXPECT_EQ(results.at(0).outcome, ReserveOutcome::kReserved);
  const std::vector<std::byte> value = PatternValue(wire, kBlockBytes);
  std::ranges::copy(value, results[0].reservation.value().begin());
  EXPECT_TRUE(results[0].reservation.Publish(MakeEnvelope(ns, wire, 1, 1, value)));
  return key;
}

std::vector<BlockRef> RefTo(TieredStore* store, const BlockKey& key) {
  std::vector<BlockRef> refs;
  refs.push_back(store->Acquire(key));
  return refs;
}

class SessionTableTest : public testing::Test {
 protected:
  static NodeLimits Limits() {
    NodeLimits limits;
    limits.max_sessions = 2;
    limits.max_leases = 2;
    limits.max_lease = absl::Seconds(10);
    return limits;
  }
  uint64_t referenced() const { return store_->Stats().referenced_blocks; }

  ManualClock clock_;
  std::unique_ptr<TieredStore> store_ = MakeStore();
  BlockKey key_ = PutBlock(store_.get(), {7}, 1);
  SessionTable table_{&clock_, Limits()};
};

TEST_F(SessionTableTest, TokensOpenLiveSessionsOnly) {
  absl::StatusOr<OpenedSession> a = table_.Open("alpha", "a");
  absl::StatusOr<OpenedSession> b = table_.Open("beta", "b");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->token, b->token);
  EXPECT_EQ(table_.Authenticate(a->token)->tenant, "alpha");
  EXPECT_EQ(table_.Authenticate(b->token)->tenant, "beta");
  EXPECT_EQ(table_.Authenticate(SessionToken{}), nullptr);
  EXPECT_EQ(table_.Open("gamma", "c").status().code(), absl::StatusCode::kResourceExhausted);
  table_.End(a->session->id);
  table_.End(a->session->id);
  EXPECT_EQ(table_.Authenticate(a->token), nullptr);
  EXPECT_EQ(table_.session_count(), 1);
  EXPECT_TRUE(table_.Open("gamma", "c").ok());
}

TEST_F(SessionTableTest, LeasesEndInTimeInOrder) {
  const uint64_t session = table_.Open("alpha", "a")->session->id;
  EXPECT_EQ(table_.ExpireLeases(), absl::InfiniteDuration());
  ASSERT_NE(table_.GrantLease(session, RefTo(store_.get(), key_), absl::Seconds(5)), 0);
  ASSERT_NE(table_.GrantLease(session, RefTo(store_.get(), key_), absl::Hours(5)), 0);
  EXPECT_EQ(table_.GrantLease(session, RefTo(store_.get(), key_), absl::Seconds(1)), 0);
  EXPECT_EQ(table_.lease_count(), 2);
  EXPECT_EQ(table_.ExpireLeases(), absl::Seconds(5));
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(table_.ExpireLeases(), absl::Seconds(5));  // capped at max_lease
  EXPECT_EQ(referenced(), 1);
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(table_.ExpireLeases(), absl::InfiniteDuration());
  EXPECT_EQ(referenced(), 0);
}

TEST_F(SessionTableTest, LeasesHoldTheirShareOfTheTierAtMost) {
  NodeLimits limits;
  limits.max_leased_bytes = 2 * store_->Acquire(key_).value().size();
  SessionTable table(&clock_, limits);
  const uint64_t session = table.Open("alpha", "a")->session->id;
  const uint64_t other = table.Open("beta", "b")->session->id;
  const uint64_t lease = table.GrantLease(session, RefTo(store_.get(), key_), absl::Seconds(5));
  ASSERT_NE(lease, 0);
  ASSERT_NE(table.GrantLease(other, RefTo(store_.get(), key_), absl::Seconds(5)), 0);
  EXPECT_EQ(table.GrantLease(other, RefTo(store_.get(), key_), absl::Seconds(5)), 0);
  EXPECT_TRUE(table.ReleaseLease(session, lease));
  EXPECT_NE(table.GrantLease(other, RefTo(store_.get(), key_), absl::Seconds(5)), 0);
  table.End(other);
  EXPECT_NE(table.GrantLease(session, RefTo(store_.get(), key_), absl::Seconds(5)), 0);
}

TEST_F(SessionTableTest, LeasesBelongToTheirSessionAndDieWithIt) {
  const uint64_t owner = table_.Open("alpha", "a")->session->id;
  const uint64_t other = table_.Open("alpha", "b")->session->id;
  const uint64_t lease = table_.GrantLease(owner, RefTo(store_.get(), key_), absl::Seconds(5));
  EXPECT_FALSE(table_.ReleaseLease(other, lease));
  EXPECT_TRUE(table_.ReleaseLease(owner, lease));
  EXPECT_FALSE(table_.ReleaseLease(owner, lease));
  EXPECT_EQ(referenced(), 0);
  ASSERT_NE(table_.GrantLease(owner, RefTo(store_.get(), key_), absl::Seconds(5)), 0);
  table_.End(owner);
  EXPECT_EQ(referenced(), 0);
  EXPECT_EQ(table_.GrantLease(owner, RefTo(store_.get(), key_), absl::Seconds(5)), 0);
  EXPECT_EQ(referenced(), 0);
  EXPECT_EQ(table_.ExpireLeases(), absl::InfiniteDuration());
}

NamespaceSpec Spec(const std::string& name) {
  NamespaceSpec spec;
  spec.name = name;
  spec.layout = TestLayout(kBlockBytes, 1);
  spec.hash_scheme.set_algorithm("sha256");
  return spec;
}

class NamespaceTableTest : public testing::Test {
 protected:
  absl::StatusOr<std::shared_ptr<OpenedNamespace>> Open(const std::string& tenant,
                                                        const NamespaceSpec& spec,
                                                        bool create = true) {
    return table_.Open(tenant, spec, create, &created_);
  }
  bool created_ = false;
  NamespaceTable table_{3, 1 << 20};
};

TEST_F(NamespaceTableTest, TenantsHaveTheirOwn) {
  auto a = Open("alpha", Spec("chat"));
  EXPECT_TRUE(created_);
  auto b = Open("beta", Spec("chat"));
  EXPECT_TRUE(created_);
  auto again = Open("alpha", Spec("chat"));
  EXPECT_FALSE(created_);
  ASSERT_TRUE(a.ok() && b.ok() && again.ok());
  EXPECT_EQ(*a, *again);
  EXPECT_NE((*a)->id(), (*b)->id());
  EXPECT_NE((*a)->secret(), (*b)->secret());
  EXPECT_EQ((*a)->layout_id(), (*b)->layout_id());
  EXPECT_NE((*a)->id().value, 0);
  EXPECT_EQ(table_.Find("alpha", (*a)->id()), *a);
  EXPECT_EQ(table_.Find("beta", (*a)->id()), nullptr);
  EXPECT_EQ(table_.List("alpha").size(), 1);
  EXPECT_EQ(table_.List("").size(), 2);
  EXPECT_EQ(Open("alpha", Spec("other"), false).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(NamespaceTableTest, EachDifferenceIsNamed) {
  ASSERT_TRUE(Open("alpha", Spec("chat")).ok());
  NamespaceSpec other = Spec("chat");
  other.layout.set_block_tokens(64);
  (*other.layout.mutable_extra())["rope"] = "yarn";
  other.hash_scheme.set_seed_fingerprint("beef");
  const absl::Status status = Open("alpha", other).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("block_tokens is '16', not '64'"));
  EXPECT_THAT(message, HasSubstr("extra.rope is absent, not 'yarn'"));
  EXPECT_THAT(message, HasSubstr("seed_fingerprint is '', not 'beef'"));
  EXPECT_THAT(message, testing::Not(HasSubstr("model")));
}

TEST_F(NamespaceTableTest, AnEmptyEntryIsNotAMissingOne) {
  ASSERT_TRUE(Open("alpha", Spec("chat")).ok());
  NamespaceSpec other = Spec("chat");
  (*other.layout.mutable_extra())["rope"] = "";
  EXPECT_EQ(Open("alpha", other).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(NamespaceTableTest, NoMessageIsTooLongForGrpc) {
  NamespaceSpec spec = Spec("chat");
  for (int i = 0; i < 32; ++i) {
    (*spec.layout.mutable_extra())[std::to_string(i)] = std::string(256, 'x');
  }
  ASSERT_TRUE(Open("alpha", spec).ok());
  for (auto& [name, value] : *spec.layout.mutable_extra()) value = std::string(256, 'y');
  const std::string long_name(1 << 20, 'n');
  for (const absl::Status& status :
       {Open("alpha", spec).status(), table_.Delete("alpha", long_name, nullptr),
        table_.Delete(long_name, "chat", nullptr), ParseBlockKey(long_name).status()}) {
    EXPECT_FALSE(status.ok());
    EXPECT_LT(status.message().size(), 8192u / 3) << status;
  }
}

TEST_F(NamespaceTableTest, DefinitionsAreBounded) {
  const std::function<void(NamespaceSpec*)> wrongs[] = {
      [](NamespaceSpec* s) { s->name = "No Name"; },
      [](NamespaceSpec* s) { s->layout.set_model(""); },
      [](NamespaceSpec* s) { s->layout.set_salt(std::string(257, 's')); },
      [](NamespaceSpec* s) { s->layout.set_block_tokens(0); },
      [](NamespaceSpec* s) { s->layout.set_shards(0); },
      [](NamespaceSpec* s) { s->layout.set_shards(65537); },
      [](NamespaceSpec* s) { s->layout.set_block_bytes(100); },
      [](NamespaceSpec* s) { s->layout.set_block_bytes(2 << 20); },
      [](NamespaceSpec* s) { s->layout.set_segments(3); },
      [](NamespaceSpec* s) {
        for (int i = 0; i < 33; ++i) (*s->layout.mutable_extra())[std::to_string(i)] = "x";
      },
      // A field 100 of a later version: it may be what tells two layouts apart.
      [](NamespaceSpec* s) { s->layout.MergeFromString("\xa0\x06\x01"); },
      [](NamespaceSpec* s) { s->hash_scheme.MergeFromString("\xa0\x06\x01"); },
  };
  for (const auto& spoil : wrongs) {
    NamespaceSpec spec = Spec("chat");
    spoil(&spec);
    EXPECT_EQ(Open("alpha", spec).status().code(), absl::StatusCode::kInvalidArgument);
  }
  for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(Open("alpha", Spec(name)).ok());
  EXPECT_EQ(Open("alpha", Spec("d")).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(LayoutTest, EveryFieldChangesTheId) {
  const control::v1::Layout base = TestLayout(kBlockBytes, 1);
  const std::function<void(control::v1::Layout*)> changes[] = {
      [](auto* l) { l->set_model("other"); },
      [](auto* l) { l->set_kv_dtype("fp16"); },
      [](auto* l) { l->set_format("HND"); },
      [](auto* l) { l->set_block_tokens(32); },
      [](auto* l) { l->set_layers(99); },
      [](auto* l) { l->set_kv_heads(99); },
      [](auto* l) { l->set_head_dim(99); },
      [](auto* l) { l->set_shards(2); },
      [](auto* l) { l->set_cache_group("g"); },
      [](auto* l) { l->set_salt("s"); },
      [](auto* l) { l->set_block_bytes(8192); },
      [](auto* l) { l->set_segments(2); },
      [](auto* l) { (*l->mutable_extra())["a"] = "b"; },
      [](auto* l) { (*l->mutable_extra())["ab"] = ""; },
  };
  std::set<uint64_t> ids = {LayoutId(base)};
  for (const auto& change : changes) {
    control::v1::Layout layout = base;
    change(&layout);
    ids.insert(LayoutId(layout));
  }
  EXPECT_EQ(ids.size(), std::size(changes) + 1);
  EXPECT_EQ(LayoutId(base), LayoutId(TestLayout(kBlockBytes, 1)));
}

TEST_F(NamespaceTableTest, DeletionForgetsEverythingAndTellsProgress) {
  std::unique_ptr<TieredStore> store = MakeStore();
  std::shared_ptr<OpenedNamespace> ns = *Open("alpha", Spec("chat"));
  for (uint64_t i = 0; i < 1500; ++i) PutBlock(store.get(), ns->id(), i);
  const BlockKey kept = PutBlock(store.get(), {ns->id().value + 1}, 1);

  std::vector<DeletionProgress> told;
  EXPECT_EQ(table_.Delete("beta", "chat", {}).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(
      table_.Delete("alpha", "chat", [&](const DeletionProgress& p) { told.push_back(p); }).ok());
  EXPECT_FALSE(ns->live());
  EXPECT_FALSE(ns->RunIfLive([] { FAIL() << "work on a namespace being deleted"; }));
  EXPECT_EQ(table_.Find("alpha", ns->id()), nullptr);
  EXPECT_EQ(Open("alpha", Spec("chat")).status().code(), absl::StatusCode::kFailedPrecondition);
  while (table_.ForgetSome(store.get())) continue;
  ASSERT_GE(told.size(), 3);
  EXPECT_FALSE(told.front().done);
  EXPECT_EQ(told.back().forgotten.host, 1500);
  EXPECT_EQ(told.back().total.host, 1500);
  EXPECT_EQ(told.back().total.ssd, 0);
  EXPECT_TRUE(told.back().done);
  EXPECT_TRUE(store->Find(kept).has_value());
  EXPECT_EQ(store->Stats().blocks, 1);
  // The name is free again, and is another namespace.
  auto again = Open("alpha", Spec("chat"));
  ASSERT_TRUE(again.ok());
  EXPECT_NE((*again)->id(), ns->id());
}

}  // namespace
}  // namespace terrace
