// Gets that wait for the ssd tier, over a device that answers when the test says so.
#include <gtest/gtest.h>

#include "cache_node/data_service.h"
#include "proto/clock.h"
#include "storage/faulty_file_io.h"
#include "tests/cache_node/node_fixture.h"
#include "tests/storage/cold_support.h"

namespace terrace {
namespace {

constexpr uint32_t kBlockBytes = 64 << 10;
constexpr uint32_t kSegments = 4;

class ColdGetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto io = std::make_unique<FaultyFileIo>();
    disk_ = io.get();
    ColdFolderOptions folder = testing::SmallFolder(folder_.path() + "/ssd");
    folder.io = std::move(io);
    ColdTierOptions tier;
    tier.folders.push_back(std::move(folder));
    auto cold = ColdTier::Open(std::move(tier)).value();
    ASSERT_TRUE(cold->store().WaitUntilLoaded(absl::Seconds(20)).ok());
    bool created = false;
    ns_ = *namespaces_.Open("tenant", {"test", TestLayout(kBlockBytes, kSegments), {}},
                            /*create=*/true, &created);
    testing::TestBlock block({ns_->id(), key_.digest, key_.shard}, kBlockBytes, kSegments);
    testing::OneByOne device(cold->store());
    ASSERT_TRUE(testing::PutAndWait(device, block).ok());

    store_ = TieredStore::Create({.host_bytes = 8 << 20}, std::move(cold)).value();
    mover_ = std::make_unique<Mover>(store_.get(), &namespaces_);
    service_ = std::make_unique<DataService>(DataPlane{Clock::Real(), store_.get(), &sessions_,
                                                       &namespaces_, mover_.get(), &metrics_,
                                                       NodeLimits()});
    transport_ = wires_->Make(service_.get()).value();
    service_->Attach(transport_.get());
    client_ = std::make_unique<FrameClient>(wires_.get(), *transport_->Listen("127.0.0.1:0"));
    ASSERT_TRUE(client_->Hello(sessions_.Open("tenant", "test")->token));
  }
  void TearDown() override {
    if (transport_) transport_->Shutdown(absl::Seconds(10));
  }

  void HoldReads() {
    disk_->SetScript([](const IoRequest& request) {
      return IoFault{request.kind == IoKind::kRead ? IoFault::kHold : IoFault::kNone};
    });
  }
  void LetGo() {
    disk_->SetScript({});
    disk_->Release();
  }
  GetFrame Get() const { return {ns_->id(), /*deadline_ms=*/0, {{key_}}}; }
  // What was sent before has been taken.
  bool RoundTrip() {
    return client_->Call<MatchReplyFrame>(9, MatchFrame{ns_->id(), false, 0, {key_}}).has_value();
  }

  const WireKey key_ = TestKey(1);
  testing::TempFolder folder_;
  FaultyFileIo* disk_ = nullptr;  // the store's
  std::unique_ptr<Wires> wires_ = Wires::Loopback();
  MetricRegistry registry_;
  DataMetrics metrics_{&registry_};
  NamespaceTable namespaces_{64, 1 << 20};
  std::shared_ptr<OpenedNamespace> ns_;
  std::unique_ptr<TieredStore> store_;
  SessionTable sessions_{Clock::Real(), NodeLimits()};
  std::unique_ptr<Mover> mover_;
  std::unique_ptr<DataService> service_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<FrameClient> client_;
};

TEST_F(ColdGetTest, ACancelledGetIsNotAnsweredByAFillThatComesLater) {
  HoldReads();
  client_->Send(1, Get());
  ASSERT_TRUE(disk_->WaitForHeld(1));
  client_->Send(1, CancelFrame{});
  client_->Send(2, Get());  // waits for the same fill, behind the first
  ASSERT_TRUE(RoundTrip());
  LetGo();
  const std::optional<Received> answer = client_->Next();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->request_id, 2u);
  EXPECT_EQ(std::get<BlockFrame>(answer->body).status, WireStatus::kOk);
  EXPECT_EQ(answer->payload.size(), kBlockBytes);
  EXPECT_TRUE(RoundTrip());
}

TEST_F(ColdGetTest, CancellingOneGetLeavesTheOthersTheirPlaces) {
  HoldReads();
  // More than a connection may have on its way at once: what is called off gives its place to the
  // next when its fill has come.
  constexpr uint64_t kCancelled = 40, kWanted = 41;
  for (uint64_t id = 1; id <= kCancelled; ++id) client_->Send(id, Get());
  ASSERT_TRUE(disk_->WaitForHeld(1));
  ASSERT_TRUE(RoundTrip());
  for (uint64_t id = 1; id <= kCancelled; ++id) client_->Send(id, CancelFrame{});
  client_->Send(kWanted, Get());
  ASSERT_TRUE(RoundTrip());
  LetGo();
  const std::optional<Received> answer = client_->Next();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->request_id, kWanted);
  EXPECT_EQ(std::get<BlockFrame>(answer->body).status, WireStatus::kOk);
  EXPECT_TRUE(RoundTrip());
}

}  // namespace
}  // namespace terrace
