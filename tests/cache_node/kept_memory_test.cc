// Host memory that outlives the process which served from it. A store that is left as it is, not
// ended, is what a kill leaves.
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <string>

#include "cache_node/host_memory.h"
#include "cache_node/region_table.h"
#include "cache_node/tiered_store.h"
#include "gtest/gtest.h"
#include "tests/cache_node/store_test_util.h"

namespace terrace {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kChunk = 2 * kMiB;
constexpr BlockShape kSmall{64 << 10, 4}, kLarge{1 << 20, 8};

// Keeps files as the supervisor does: each process finds what was kept when it began.
class Keeper final : public DescriptorStore {
 public:
  absl::Status Keep(std::string_view name, const Descriptor& file) override {
    kept_[std::string(name)] = Descriptor(dup(file.get()));
    return absl::OkStatus();
  }
  absl::Status DropAll(std::string_view prefix) override {
    std::erase_if(kept_, [prefix](const auto& file) { return file.first.starts_with(prefix); });
    return absl::OkStatus();
  }
  Descriptor Take(std::string_view name) override {
    const auto found = kept_.find(std::string(name));
    return found == kept_.end() ? Descriptor() : Descriptor(dup(found->second.get()));
  }

  std::map<std::string, Descriptor> kept_;
};

TEST(RegionTableTest, KnowsTheLatestRegionsOnly) {
  RegionTable table = RegionTable::Create(8 * kChunk, kChunk).value();
  const PlaceClass a{65536, 256, 1}, b{1 << 20, 256, 2};
  table.Set({0, 4, a});
  table.Set({6, 2, b});
  table.Clear(2, 3);
  table.Set({2, 3, b});  // in the middle of the first, which has been given up
  RegionTable again =
      RegionTable::Open(Descriptor(dup(table.file().get())), 8 * kChunk, kChunk).value();
  const std::vector<HostRegion> regions = again.Regions();
  ASSERT_EQ(regions.size(), 2u);
  EXPECT_EQ(regions[0].first_chunk, 2u);
  EXPECT_EQ(regions[0].chunks, 3u);
  EXPECT_EQ(regions[1].size, b);
  again.Clear(2, 3);
  again.Clear(0, 4);
  EXPECT_EQ(again.Regions().size(), 1u);
}

TEST(RegionTableTest, AnotherSizeOrFormatIsRefused) {
  RegionTable table = RegionTable::Create(8 * kChunk, kChunk).value();
  const auto open = [&](uint64_t bytes, uint64_t chunk) {
    return RegionTable::Open(Descriptor(dup(table.file().get())), bytes, chunk).status();
  };
  EXPECT_TRUE(open(8 * kChunk, kChunk).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(open(9 * kChunk, kChunk)));
  EXPECT_TRUE(absl::IsFailedPrecondition(open(16 * kChunk, 2 * kChunk)));
  const uint32_t format = 2;
  ASSERT_EQ(pwrite(table.file().get(), &format, sizeof(format), 4), 4);
  EXPECT_TRUE(absl::IsFailedPrecondition(open(8 * kChunk, kChunk)));
}

class KeptMemory : public testing::Test {
 protected:
  KeptMemory() { Begin(); }

  // As a process that finds what the one before has left, which ended in the middle of it.
  void Begin() {
    if (store_ != nullptr) Abandoned()->push_back(std::move(store_));
    TieredStoreOptions options;
    options.host_bytes = host_bytes_;
    options.tenant_of = [this](NamespaceId ns) { return TenantOf(ns); };
    options.tenant_lives = [this](uint32_t tenant) { return tenant != gone_; };
    options.keep = &keeper_;
    store_ = TieredStore::Create(std::move(options)).value();
  }
  uint32_t TenantOf(NamespaceId ns) const {
    const uint32_t tenant = ns.value < 10 ? 1 : 2;
    return tenant == gone_ ? 0 : tenant;
  }
  void Put(uint64_t number, uint64_t ns, BlockShape shape) {
    ASSERT_EQ(PutBlock(store_.get(), TestKey(number, ns), shape), ReserveOutcome::kReserved);
  }
  bool Has(uint64_t number, uint64_t ns) {
    const BlockRef ref = store_->Acquire(TestKey(number, ns));
    return ref && HasPayload(TestKey(number, ns), ref.value());
  }
  ptrdiff_t OffsetOf(ByteSpan bytes) const { return bytes.data() - store_->memory().data(); }

  // Their memory stays mapped, as that of a process which was killed may by others.
  static std::vector<std::unique_ptr<TieredStore>>* Abandoned() {
    static auto* const abandoned = new std::vector<std::unique_ptr<TieredStore>>;
    return abandoned;
  }

  Keeper keeper_;
  uint64_t host_bytes_ = 64 * kMiB;
  uint32_t gone_ = 0;
  std::unique_ptr<TieredStore> store_;
};

TEST_F(KeptMemory, BlocksAreThereAgainInTheirPlaces) {
  for (uint64_t i = 0; i < 100; ++i) Put(i, 1, kSmall);
  for (uint64_t i = 0; i < 10; ++i) Put(i, 20, kLarge);
  const ptrdiff_t place = OffsetOf(store_->Acquire(TestKey(7)).value());
  for (int life = 0; life < 3; ++life) {
    Begin();
    EXPECT_EQ(store_->Stats().kept, 110u);
    EXPECT_EQ(store_->Stats().blocks, 110u);
    EXPECT_EQ(OffsetOf(store_->Acquire(TestKey(7)).value()), place);
    for (uint64_t i = 0; i < 100; ++i) EXPECT_TRUE(Has(i, 1)) << i;
    for (uint64_t i = 0; i < 10; ++i) EXPECT_TRUE(Has(i, 20)) << i;
    EXPECT_EQ(store_->Stats().corrupt, 0u);
  }
}

TEST_F(KeptMemory, GenerationsGoOnAboveThoseOfTheBlocksThatWereKept) {
  Put(1, 1, kSmall);
  const uint64_t before = LoadGeneration(store_->Acquire(TestKey(1)).envelope());
  Begin();
  EXPECT_EQ(LoadGeneration(store_->Acquire(TestKey(1)).envelope()), before);
  Put(2, 1, kSmall);
  EXPECT_GT(LoadGeneration(store_->Acquire(TestKey(2)).envelope()), before);
}

TEST_F(KeptMemory, WhatWasBeingWrittenOrHadGoneIsFree) {
  for (uint64_t i = 0; i < 8; ++i) Put(i, 1, kSmall);
  EXPECT_TRUE(store_->Evict(TestKey(3)));
  const uint16_t opaque = 0;
  const uint32_t depth = 0;
  const BlockKey half = TestKey(100);
  auto reserved = store_->Reserve({&half, 1}, {&kSmall, 1}, {&opaque, 1}, {&depth, 1});
  FillPayload(half, reserved[0].reservation.value());
  // And one whose envelope was not yet whole.
  BlockRef torn = store_->Acquire(TestKey(5));
  const_cast<std::byte&>(torn.envelope()[20]) ^= std::byte{1};
  torn.Release();
  Begin();
  reserved.clear();  // of the store that was abandoned
  EXPECT_EQ(store_->Stats().kept, 6u);
  for (const uint64_t gone : {3, 5, 100}) EXPECT_FALSE(Has(gone, 1)) << gone;
  for (const uint64_t there : {0, 1, 2, 4, 6, 7}) EXPECT_TRUE(Has(there, 1)) << there;
  // All of the memory can be used again.
  for (uint64_t i = 200; i < 3000; ++i) Put(i, 1, kSmall);
  EXPECT_TRUE(Has(2999, 1));
}

TEST_F(KeptMemory, ASpoiltBlockIsNoticedBeforeItIsRead) {
  for (uint64_t i = 0; i < 8; ++i) Put(i, 1, kSmall);
  for (const uint64_t i : {2, 6}) {
    BlockRef ref = store_->Acquire(TestKey(i));
    const_cast<std::byte&>(ref.value()[40000]) ^= std::byte{4};
  }
  Begin();
  EXPECT_EQ(store_->Stats().kept, 8u);
  EXPECT_FALSE(store_->Acquire(TestKey(2)));
  std::vector<BlockKey> keys;
  for (uint64_t i = 3; i < 8; ++i) keys.push_back(TestKey(i));
  std::vector<BlockRef> refs;
  EXPECT_EQ(store_->Match(keys, true, nullptr, &refs), 3u);
  refs.clear();
  EXPECT_EQ(store_->Stats().corrupt, 2u);
  EXPECT_EQ(store_->Stats().blocks, 6u);
  Put(2, 1, kSmall);
  EXPECT_TRUE(Has(2, 1));
}

TEST_F(KeptMemory, MemoryOfATenantThatIsGoneIsNobodyElses) {
  for (uint64_t i = 0; i < 100; ++i) Put(i, 1, kSmall);
  for (uint64_t i = 0; i < 100; ++i) Put(i, 20, kSmall);
  const Descriptor old = store_->ShareMemory(2).value();
  gone_ = 2;
  Begin();
  EXPECT_EQ(store_->Stats().kept, 100u);
  gone_ = 0;  // another with the same number, in this process
  for (uint64_t i = 200; i < 300; ++i) Put(i, 20, kSmall);
  const BlockRef ref = store_->Acquire(TestKey(250, 20));
  std::vector<std::byte> seen(kSmall.length);
  ASSERT_EQ(pread(old.get(), seen.data(), seen.size(), OffsetOf(ref.value())),
            static_cast<ssize_t>(seen.size()));
  EXPECT_FALSE(HasPayload(TestKey(250, 20), seen));
}

TEST_F(KeptMemory, MemoryOfAnotherSizeIsLeftAndMadeAnew) {
  Put(1, 1, kSmall);
  host_bytes_ = 32 * kMiB;
  Begin();
  EXPECT_EQ(store_->Stats().kept, 0u);
  Put(2, 1, kSmall);
  Begin();
  EXPECT_EQ(store_->Stats().kept, 1u);
}

TEST_F(KeptMemory, AFileThatCouldBeCutOffIsNotMapped) {
  Put(1, 1, kSmall);
  Descriptor loose(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(loose.get(), static_cast<off_t>(host_bytes_)), 0);
  ASSERT_TRUE(keeper_.Keep("host-memory-0", loose).ok());
  Begin();
  EXPECT_EQ(store_->Stats().kept, 0u);
  Put(2, 1, kSmall);
  EXPECT_TRUE(Has(2, 1));
}

}  // namespace
}  // namespace terrace
