// Data threads, sessions, leases, evictions and deletions at the same time, without a control
// server: what ThreadSanitizer can see whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "cache_node/data_service.h"
#include "proto/clock.h"
#include "tests/cache_node/node_fixture.h"

namespace terrace {
namespace {

constexpr uint32_t kBlockBytes = 16 << 10;
constexpr uint32_t kSegments = 4;
constexpr uint64_t kKeys = 600;  // more than the tier holds
constexpr int kWorkers = 4;
constexpr int kSteps = 1000;

class DataServiceStress : public testing::Test {
 protected:
  struct DataThread {
    std::unique_ptr<DataService> service;
    std::unique_ptr<Transport> transport;
    std::string address;
  };

  void SetUp() override {
    TieredStoreOptions options;
    options.host_bytes = 8 << 20;
    options.max_block_bytes = 1 << 20;
    store_ = *TieredStore::Create(options);
    mover_ = std::make_unique<Mover>(store_.get(), &namespaces_);
    for (int i = 0; i < 2; ++i) {
      const DataPlane plane{Clock::Real(), store_.get(), &sessions_,  &namespaces_,
                            mover_.get(),  &metrics_,    NodeLimits()};
      DataThread& thread = data_.emplace_back();
      thread.service = std::make_unique<DataService>(plane);
      thread.transport = *wires_->Make(thread.service.get());
      thread.service->Attach(thread.transport.get());
      thread.address = *thread.transport->Listen("127.0.0.1:0");
    }
    kept_ = Open("kept");
  }
  void TearDown() override {
    for (DataThread& thread : data_) thread.transport->Shutdown(absl::Seconds(10));
  }

  std::shared_ptr<OpenedNamespace> Open(const std::string& name) {
    bool created = false;
    auto ns = namespaces_.Open("tenant", {name, TestLayout(kBlockBytes, kSegments), {}},
                               /*create=*/true, &created);
    return ns.ok() ? *ns : nullptr;  // being deleted
  }

  std::unique_ptr<Wires> wires_ = Wires::Loopback();
  MetricRegistry registry_;
  DataMetrics metrics_{&registry_};
  NamespaceTable namespaces_{64, 1 << 20};
  std::unique_ptr<TieredStore> store_;
  SessionTable sessions_{Clock::Real(), NodeLimits()};
  std::unique_ptr<Mover> mover_;
  std::vector<DataThread> data_;
  std::shared_ptr<OpenedNamespace> kept_;
};

// One worker's connection. Every block that it is given is judged.
class Worker {
 public:
  Worker(Wires* wires, std::string address, uint64_t seed)
      : wires_(wires), address_(std::move(address)), random_(seed) {}

  bool Connect(const SessionToken& token) {
    client_ = std::make_unique<FrameClient>(wires_, address_);
    return client_->Hello(token);
  }

  // False when the connection was lost: the session has been ended.
  bool Step(const OpenedNamespace& ns) {
    const WireKey key = TestKey(random_() % kKeys);
    switch (random_() % 6) {
      case 0:
        return Reserve(ns, key);
      case 1:
        return Put(ns, key);
      case 2:
        return Match(ns, key);
      case 3:
        client_->Send(0, TouchFrame{ns.id(), {key}});
        return true;
      default:
        return Get(ns, key);
    }
  }

  int judged() const { return judged_; }

 private:
  bool Reserve(const OpenedNamespace& ns, const WireKey& key) {
    auto reply =
        client_->Call<ReserveReplyFrame>(1, ReserveFrame{ns.id(), 1000, {{key, ns.shape(), 0, 0}}});
    if (!reply) return false;
    if (reply->items.at(0).status != WireStatus::kOk) return true;
    if (random_() % 4 == 0) {
      client_->Send(1, CancelFrame{});
      return true;
    }
    const std::vector<std::byte> value = PatternValue(key, kBlockBytes);
    const Envelope envelope = MakeEnvelope(ns.id(), key, ns.layout_id(), kSegments, value);
    return client_
        ->Call<PutReplyFrame>(2, ValueFrame{0, reply->items[0].reservation, Encoded(envelope)},
                              value)
        .has_value();
  }

  bool Put(const OpenedNamespace& ns, const WireKey& key) {
    std::vector<std::byte> value = PatternValue(key, kBlockBytes);
    const std::vector<std::byte> envelope =
        Encoded(MakeEnvelope(ns.id(), key, ns.layout_id(), kSegments, value));
    value.insert(value.end(), envelope.begin(), envelope.end());
    return client_
        ->Call<PutReplyFrame>(3, PutFrame{ns.id(), 1000, {key, ns.shape(), 0, 0}, {}}, value)
        .has_value();
  }

  bool Match(const OpenedNamespace& ns, const WireKey& key) {
    auto reply = client_->Call<MatchReplyFrame>(4, MatchFrame{ns.id(), true, 20, {key}});
    if (reply && reply->lease != 0 && random_() % 2 == 0) {
      client_->Send(0, ReleaseFrame{reply->lease});
    }
    return reply.has_value();
  }

  bool Get(const OpenedNamespace& ns, const WireKey& key) {
    client_->Send(5, GetFrame{ns.id(), 1000, {{key}}});
    const std::optional<Received> reply = client_->Next();
    if (!reply) return false;
    const auto& block = std::get<BlockFrame>(reply->body);
    if (block.status != WireStatus::kOk) return true;
    const auto envelope = EnvelopeView::Parse(block.envelope);
    EXPECT_TRUE(envelope.ok()) << envelope.status();
    EXPECT_EQ(envelope->key(), (BlockKey{ns.id(), key.digest, key.shard}));
    EXPECT_EQ(reply->payload, PatternValue(key, kBlockBytes));
    ++judged_;
    return true;
  }

  Wires* const wires_;
  const std::string address_;
  std::mt19937_64 random_;
  std::unique_ptr<FrameClient> client_;
  int judged_ = 0;
};

TEST_F(DataServiceStress, EverybodyAtOnce) {
  std::atomic<int> running{kWorkers};
  std::atomic<int> judged{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kWorkers; ++i) {
    threads.emplace_back([&, i] {
      Worker worker(wires_.get(), data_[static_cast<size_t>(i) % data_.size()].address,
                    static_cast<uint64_t>(i));
      std::mt19937_64 random(static_cast<uint64_t>(100 + i));
      int left = kSteps;
      while (left > 0) {
        const OpenedSession session = *sessions_.Open("tenant", "worker");
        ASSERT_TRUE(worker.Connect(session.token));
        // Sometimes the session ends under the worker's feet.
        for (int steps = 20 + static_cast<int>(random() % 60); steps > 0 && left > 0; --steps) {
          std::shared_ptr<OpenedNamespace> ns = random() % 3 == 0 ? Open("fleeting") : kept_;
          if (!worker.Step(ns == nullptr ? *kept_ : *ns)) break;
          --left;
        }
        sessions_.End(session.session->id);
        for (const DataThread& thread : data_) thread.service->EndSession(session.session->id);
      }
      judged += worker.judged();
      --running;
    });
  }
  threads.emplace_back([&] {
    while (running > 0) {
      sessions_.ExpireLeases();
      if (namespaces_.Delete("tenant", "fleeting", [](const DeletionProgress&) {}).ok())
        mover_->Wake();
      store_->Stats();
      registry_.Values();
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();

  EXPECT_GT(judged, 0);
  EXPECT_EQ(registry_.Values().at("terrace_frames_malformed_total"), 0);
  EXPECT_EQ(registry_.Values().at("terrace_checksum_mismatches_total"), 0);
  for (DataThread& thread : data_) thread.transport->Shutdown(absl::Seconds(10));
  EXPECT_EQ(sessions_.lease_count(), 0);
  EXPECT_EQ(sessions_.reservation_count(), 0);
  EXPECT_EQ(store_->Stats().referenced_blocks, 0);
}

}  // namespace
}  // namespace terrace
