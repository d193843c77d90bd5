#include "storage/catalogue.h"

#include "gtest/gtest.h"
#include "tests/storage/cold_support.h"
#include "tests/storage/failing_env.h"

namespace terrace::testing {
namespace {

constexpr uint64_t kDiskBytes = 64 << 20;

BlockRecord RecordAt(uint32_t page) {
  BlockRecord record;
  record.place = {false, page};
  record.length = 64 << 10;
  record.envelope_bytes = 208;
  record.traffic_class = TrafficClass::kAgent;
  record.depth = 3;
  record.expires_at = 77;
  record.score = -2.5f;
  record.generation = 1'000'000'000'007;
  return record;
}

TEST(BlockRecord, RoundTripAndRefusals) {
  const std::string bytes = EncodeBlockRecord(RecordAt(9));
  const auto decoded = DecodeBlockRecord(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(*decoded, RecordAt(9));
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeBlockRecord(bytes.substr(0, length)).status()));
  }
  EXPECT_TRUE(absl::IsDataLoss(DecodeBlockRecord(bytes + "x").status()));
  std::string later = bytes;
  later[0] = 2;
  EXPECT_TRUE(absl::IsDataLoss(DecodeBlockRecord(later).status()));
}

TEST(CatalogueKey, SortsByNamespaceThenDigestThenShard) {
  BlockKey low = KeyOf(1, 255), high = KeyOf(1, 256), shard = low;
  shard.shard = 256;
  EXPECT_LT(EncodeCatalogueKey(low), EncodeCatalogueKey(high));
  EXPECT_LT(EncodeCatalogueKey(low), EncodeCatalogueKey(shard));
  for (const BlockKey& key : {low, high, shard}) {
    EXPECT_EQ(*DecodeCatalogueKey(EncodeCatalogueKey(key)), key);
  }
}

class CatalogueTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(); }
  void Open() {
    catalogue_.reset();
    auto opened = Catalogue::Open(temp_.path() + "/catalogue", kDiskBytes, nullptr);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    catalogue_ = *std::move(opened);
  }
  std::vector<BlockKey> ScanAll(NamespaceId ns, std::optional<BlockKey> after = std::nullopt) {
    std::vector<BlockKey> keys;
    EXPECT_TRUE(catalogue_
                    ->Scan(ns, after,
                           [&](const BlockKey& key, const BlockRecord&) {
                             keys.push_back(key);
                             return true;
                           })
                    .ok());
    return keys;
  }

  TempFolder temp_;
  std::unique_ptr<Catalogue> catalogue_;
};

TEST_F(CatalogueTest, PutFindDelete) {
  CatalogueBatch batch;
  batch.Put(KeyOf(1), RecordAt(1));
  BlockRecord inlined = RecordAt(0);
  inlined.place = {true, 5};
  batch.Put(KeyOf(2), inlined, "envelope and value");
  batch.PutMeta("note", "text");
  EXPECT_EQ(catalogue_->Commit(&batch), absl::OkStatus());
  EXPECT_TRUE(batch.empty());
  EXPECT_EQ(catalogue_->Sync(), absl::OkStatus());
  Open();  // recovered from the log
  EXPECT_EQ(**catalogue_->Find(KeyOf(1)), RecordAt(1));
  EXPECT_EQ(**catalogue_->FindInline(KeyOf(2)), "envelope and value");
  EXPECT_EQ(**catalogue_->FindMeta("note"), "text");
  EXPECT_FALSE(catalogue_->Find(KeyOf(3))->has_value());
  const std::vector<ColdPlace> places = {{false, 1}, {true, 5}, {false, 2}};
  const auto keys = catalogue_->KeysAt(places);
  ASSERT_TRUE(keys.ok());
  EXPECT_EQ((*keys)[0], KeyOf(1));
  EXPECT_EQ((*keys)[1], KeyOf(2));
  EXPECT_FALSE((*keys)[2].has_value());
  batch.Delete(KeyOf(2), inlined.place);
  EXPECT_EQ(catalogue_->Commit(&batch), absl::OkStatus());
  EXPECT_FALSE(catalogue_->Find(KeyOf(2))->has_value());
  EXPECT_FALSE(catalogue_->FindInline(KeyOf(2))->has_value());
  EXPECT_FALSE((*catalogue_->KeysAt(places))[1].has_value());
}

TEST_F(CatalogueTest, ScanIsOneNamespaceAndGoesOnAfterAKey) {
  CatalogueBatch batch;
  for (uint64_t i = 0; i < 100; ++i) batch.Put(KeyOf(i, 1 + i % 2), RecordAt(10 * i));
  EXPECT_EQ(catalogue_->Commit(&batch), absl::OkStatus());
  const std::vector<BlockKey> all = ScanAll(NamespaceId{2});
  ASSERT_EQ(all.size(), 50);
  EXPECT_TRUE(std::ranges::is_sorted(all));
  const std::vector<BlockKey> rest = ScanAll(NamespaceId{2}, all[19]);
  EXPECT_EQ(rest, std::vector<BlockKey>(all.begin() + 20, all.end()));
  EXPECT_TRUE(ScanAll(NamespaceId{3}).empty());
  std::vector<uint32_t> pages;
  EXPECT_TRUE(
      catalogue_
          ->ScanSlots(100, 200, [&](uint32_t page, const BlockKey&) { pages.push_back(page); })
          .ok());
  EXPECT_EQ(pages.size(), 10);
  EXPECT_EQ(pages.front(), 100);
}

// A log whose writing failed is given up by RocksDB: neither a sync nor a commit may touch it, and
// what was committed before is there when the device is back.
TEST(CatalogueDevice, GoesAwayAndComesBack) {
  TempFolder temp;
  const auto system = std::make_shared<FailingFileSystem>();
  const auto env = rocksdb::NewCompositeEnv(system);
  auto catalogue = Catalogue::Open(temp.path() + "/catalogue", 64 << 20, env.get());
  ASSERT_TRUE(catalogue.ok());
  CatalogueBatch batch;
  batch.Put(KeyOf(1), RecordAt(1));
  ASSERT_EQ((*catalogue)->Commit(&batch), absl::OkStatus());
  system->fails = true;
  batch.Put(KeyOf(2), RecordAt(2));
  EXPECT_TRUE(absl::IsUnavailable((*catalogue)->Commit(&batch)));
  EXPECT_TRUE(batch.empty());
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE((*catalogue)->Sync().ok());
    EXPECT_FALSE((*catalogue)->Resume().ok());
    batch.Put(KeyOf(2), RecordAt(2));
    EXPECT_FALSE((*catalogue)->Commit(&batch).ok());
    const auto found = (*catalogue)->Find(KeyOf(1));  // reads go on
    ASSERT_TRUE(found.ok());
    EXPECT_TRUE(found->has_value());
  }
  system->fails = false;
  ASSERT_EQ((*catalogue)->Resume(), absl::OkStatus());
  batch.Put(KeyOf(3), RecordAt(3));
  EXPECT_EQ((*catalogue)->Commit(&batch), absl::OkStatus());
  EXPECT_EQ((*catalogue)->Sync(), absl::OkStatus());
  for (const uint64_t number : {1, 3}) {
    const auto found = (*catalogue)->Find(KeyOf(number));
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, RecordAt(number));
  }
}

// The same when the sync is what fails.
TEST(CatalogueDevice, SyncFailsAndGoesAgain) {
  TempFolder temp;
  const auto system = std::make_shared<FailingFileSystem>();
  const auto env = rocksdb::NewCompositeEnv(system);
  auto catalogue = Catalogue::Open(temp.path() + "/catalogue", 64 << 20, env.get());
  ASSERT_TRUE(catalogue.ok());
  CatalogueBatch batch;
  batch.Put(KeyOf(1), RecordAt(1));
  ASSERT_EQ((*catalogue)->Commit(&batch), absl::OkStatus());
  system->fails = true;
  EXPECT_FALSE((*catalogue)->Sync().ok());
  EXPECT_FALSE((*catalogue)->Sync().ok());
  system->fails = false;
  EXPECT_EQ((*catalogue)->Resume(), absl::OkStatus());
  EXPECT_EQ((*catalogue)->Sync(), absl::OkStatus());
  const auto found = (*catalogue)->Find(KeyOf(1));
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*found, RecordAt(1));
}

}  // namespace
}  // namespace terrace::testing
