// Host memory as other processes see it: through a descriptor of their tenant's, for reading.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#include "cache_node/host_memory.h"
#include "cache_node/tiered_store.h"
#include "gtest/gtest.h"
#include "tests/cache_node/store_test_util.h"

namespace terrace {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kChunk = 2 * kMiB;
constexpr BlockShape kShape{64 << 10, 4};

// A map of a descriptor as a worker has it.
class Map {
 public:
  Map(const Descriptor& fd, size_t size) {
    void* at = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (at != MAP_FAILED) bytes_ = ByteSpan(static_cast<std::byte*>(at), size);
  }
  Map(const Map&) = delete;
  Map& operator=(const Map&) = delete;
  ~Map() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }
  ByteSpan bytes() const { return bytes_; }
  bool AllZero(uint64_t offset, uint64_t length) const {
    return std::ranges::all_of(bytes_.subspan(offset, length),
                               [](std::byte b) { return b == std::byte{0}; });
  }

 private:
  ByteSpan bytes_;
};

TEST(HostMemoryTest, EachTenantSeesItsChunksAndNoOthers) {
  HostMemory memory = HostMemory::Create(4 * kChunk, kChunk, {}).value();
  ASSERT_TRUE(memory.Give(0, 4 * kChunk, 1).ok());
  std::ranges::fill(memory.bytes(), std::byte{1});
  ASSERT_TRUE(memory.Give(kChunk, 2 * kChunk, 2).ok());
  EXPECT_EQ(memory.bytes()[kChunk], std::byte{0});  // what was there is gone
  std::ranges::fill(memory.bytes().subspan(kChunk, 2 * kChunk), std::byte{2});

  const Map one(memory.OpenForReading(1).value(), memory.bytes().size());
  const Map two(memory.OpenForReading(2).value(), memory.bytes().size());
  const Map three(memory.OpenForReading(3).value(), memory.bytes().size());
  EXPECT_EQ(one.bytes()[0], std::byte{1});
  EXPECT_EQ(one.bytes()[3 * kChunk], std::byte{1});
  EXPECT_TRUE(one.AllZero(kChunk, 2 * kChunk));
  EXPECT_TRUE(two.AllZero(0, kChunk));
  EXPECT_EQ(two.bytes()[kChunk], std::byte{2});
  EXPECT_EQ(two.bytes()[3 * kChunk - 1], std::byte{2});
  EXPECT_TRUE(two.AllZero(3 * kChunk, kChunk));
  EXPECT_TRUE(three.AllZero(0, 4 * kChunk));

  ASSERT_TRUE(memory.Give(0, 4 * kChunk, 3).ok());
  EXPECT_TRUE(one.AllZero(0, 4 * kChunk));
  EXPECT_TRUE(two.AllZero(0, 4 * kChunk));
}

TEST(HostMemoryTest, WhoReadsCanNeitherWriteNorResize) {
  HostMemory memory = HostMemory::Create(kChunk, kChunk, {}).value();
  const Descriptor fd = memory.OpenForReading(1).value();
  EXPECT_EQ(mmap(nullptr, kChunk, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
  EXPECT_EQ(errno, EACCES);
  const Map map(fd, kChunk);
  EXPECT_EQ(mprotect(const_cast<std::byte*>(map.bytes().data()), kChunk, PROT_READ | PROT_WRITE),
            -1);
  EXPECT_EQ(ftruncate(fd.get(), 0), -1);
  EXPECT_EQ(fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kChunk), -1);
  // Who may write the file all the same, such as the user who runs the node, cannot cut it off.
  const std::string again = "/proc/self/fd/" + std::to_string(fd.get());
  const Descriptor writable(open(again.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(!writable || ftruncate(writable.get(), 0) == -1);
}

class SharedStore : public testing::Test {
 protected:
  // Namespaces 1 to 9 are of tenant 1, the others of tenant 2.
  SharedStore() {
    TieredStoreOptions options;
    options.host_bytes = 16 * kMiB;
    options.tenant_of = [](NamespaceId ns) { return ns.value == 0 ? 0 : ns.value < 10 ? 1 : 2; };
    store_ = TieredStore::Create(std::move(options)).value();
  }
  Map MapOf(uint32_t tenant) {
    return Map(store_->ShareMemory(tenant).value(), store_->memory().size());
  }
  ptrdiff_t OffsetOf(ByteSpan bytes) const { return bytes.data() - store_->memory().data(); }

  std::unique_ptr<TieredStore> store_;
};

TEST_F(SharedStore, BlocksLieInTheirTenantsFileAlone) {
  const Map one = MapOf(1), two = MapOf(2);
  for (uint64_t i = 0; i < 40; ++i) {
    for (const uint64_t ns : {1, 20}) {
      const BlockKey key = TestKey(i, ns);
      ASSERT_EQ(PutBlock(store_.get(), key, kShape), ReserveOutcome::kReserved);
      const BlockRef ref = store_->Acquire(key);
      const Map& own = ns == 1 ? one : two;
      const Map& other = ns == 1 ? two : one;
      EXPECT_TRUE(HasPayload(key, own.bytes().subspan(OffsetOf(ref.value()), kShape.length)));
      EXPECT_TRUE(other.AllZero(OffsetOf(ref.value()), kShape.length));
      EXPECT_TRUE(other.AllZero(OffsetOf(ref.envelope()), ref.envelope().size()));
    }
  }
}

TEST_F(SharedStore, MemoryOfOneTenantGoesToAnotherThatNeedsItMore) {
  const Map one = MapOf(1);
  uint64_t number = 0;
  for (; store_->Stats().evicted_for_space == 0; ++number) {
    PutBlock(store_.get(), TestKey(number, 1), kShape);
  }
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(PutBlock(store_.get(), TestKey(i, 20), kShape), ReserveOutcome::kReserved);
  }
  const Map two = MapOf(2);
  uint64_t seen = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    const BlockKey key = TestKey(i, 20);
    const BlockRef ref = store_->Acquire(key);
    if (!ref) continue;
    ++seen;
    EXPECT_TRUE(IsIntact(ref, key));
    EXPECT_TRUE(one.AllZero(OffsetOf(ref.value()), kShape.length));
  }
  EXPECT_GT(seen, 10);
}

TEST_F(SharedStore, NothingIsTakenForANamespaceOfNobody) {
  EXPECT_EQ(PutBlock(store_.get(), TestKey(1, 0), kShape), ReserveOutcome::kNoSpace);
}

TEST_F(SharedStore, ABlockThatLeavesIsSeenToHaveLeft) {
  const Map one = MapOf(1);
  const BlockKey key = TestKey(1);
  PutBlock(store_.get(), key, kShape);
  ptrdiff_t at;
  uint64_t generation;
  {
    const BlockRef ref = store_->Acquire(key);
    at = OffsetOf(ref.envelope());
    generation = EnvelopeView::Parse(ref.envelope())->generation();
  }
  EXPECT_EQ(LoadGeneration(one.bytes().subspan(at)), generation);
  EXPECT_TRUE(store_->Evict(key));
  EXPECT_EQ(LoadGeneration(one.bytes().subspan(at)), 0);
}

// A reader that holds nothing: whenever the generation is still the one promised after he has read,
// he has read the block promised.
TEST_F(SharedStore, AStaleReaderKnowsIt) {
  constexpr uint64_t kRaces = 50'000;
  constexpr BlockShape kSmall{4 << 10, 1};
  const Map one = MapOf(1);
  struct Promise {
    std::atomic<uint64_t> number{0};
    std::atomic<ptrdiff_t> value{0}, envelope{0};
    std::atomic<uint64_t> generation{0};
  } promise;
  std::atomic<bool> over{false};
  std::atomic<uint64_t> intact{0}, stale{0}, wrong{0};
  std::thread reader([&] {
    std::vector<std::byte> copy(kSmall.length);
    while (!over) {
      const uint64_t generation = promise.generation.load();
      if (generation == 0) continue;
      const BlockKey key = TestKey(promise.number.load());
      const ptrdiff_t value = promise.value.load(), envelope = promise.envelope.load();
      if (promise.generation.load() != generation) continue;
      std::memcpy(copy.data(), one.bytes().data() + value, copy.size());
      if (LoadGeneration(one.bytes().subspan(envelope)) != generation) {
        ++stale;
        continue;
      }
      ++intact;
      wrong += !HasPayload(key, copy);
    }
  });
  for (uint64_t i = 1; i <= kRaces; ++i) {
    const BlockKey key = TestKey(i);
    PutBlock(store_.get(), key, kSmall);
    {
      const BlockRef ref = store_->Acquire(key);
      promise.generation = 0;
      promise.number = i;
      promise.value = OffsetOf(ref.value());
      promise.envelope = OffsetOf(ref.envelope());
      promise.generation = EnvelopeView::Parse(ref.envelope())->generation();
    }
    EXPECT_TRUE(store_->Evict(key));  // the next one gets its place
  }
  over = true;
  reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(stale, 0);
}

}  // namespace
}  // namespace terrace
