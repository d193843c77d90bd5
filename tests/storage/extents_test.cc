#include "storage/extents.h"

#include <set>

#include "gtest/gtest.h"
#include "storage/faulty_file_io.h"

namespace terrace {
namespace {

constexpr uint64_t kExtentBytes = 1 << 20;
constexpr uint32_t kLength = 60 << 10;  // 16 pages with the header page
constexpr uint32_t kSlots = 255 / 16;   // per extent

class ExtentsTest : public ::testing::Test {
 protected:
  void Add(int count) {
    for (int i = 0; i < count; ++i) {
      const auto file = io_.Open("extent" + std::to_string(extents_.count()), kExtentBytes);
      ASSERT_TRUE(file.ok());
      extents_.Add(*file, std::nullopt);
    }
  }
  std::vector<Slot> Fill(uint32_t length) {
    std::vector<Slot> slots;
    while (const auto slot = extents_.Allocate(length)) slots.push_back(*slot);
    return slots;
  }

  FaultyFileIo io_;
  Extents extents_{&io_, 99, kExtentBytes};
};

TEST_F(ExtentsTest, SlotsStayWithinTheirFileAndApart) {
  Add(3);
  const std::vector<Slot> slots = Fill(kLength);
  EXPECT_EQ(slots.size(), 3 * kSlots);
  std::set<uint32_t> pages;
  for (const Slot slot : slots) {
    EXPECT_EQ(slot.pages, 16);
    const uint64_t offset = extents_.OffsetOf(slot.page);
    EXPECT_GE(offset, kPageBytes);
    EXPECT_LE(offset + 16 * kPageBytes, kExtentBytes);
    for (uint32_t page = slot.page; page < slot.page + slot.pages; ++page) {
      EXPECT_TRUE(pages.insert(page).second);
    }
  }
}

TEST_F(ExtentsTest, NothingLargerThanAnExtent) {
  Add(3);
  EXPECT_FALSE(extents_.CanEverFit(1 << 20));
  EXPECT_FALSE(extents_.Allocate(1 << 20).has_value());
  EXPECT_TRUE(extents_.Allocate((1 << 20) - 2 * kPageBytes).has_value());
}

TEST_F(ExtentsTest, QuarantinedSlotsAreNotFree) {
  Add(1);
  const std::vector<Slot> slots = Fill(kLength);
  extents_.Quarantine(slots[3]);
  EXPECT_FALSE(extents_.Allocate(kLength).has_value());
  const std::vector<Slot> taken = extents_.TakeQuarantined();
  ASSERT_EQ(taken, std::vector<Slot>{slots[3]});
  EXPECT_FALSE(extents_.Allocate(kLength).has_value());
  extents_.Free(slots[3]);
  EXPECT_EQ(extents_.Allocate(kLength), slots[3]);
}

TEST_F(ExtentsTest, RestoreTakesExactlyWhatFits) {
  Add(2);
  const std::vector<Slot> slots = Fill(kLength);
  Extents again{&io_, 99, kExtentBytes};
  for (int i = 0; i < 2; ++i) again.Add(*io_.Open("extent" + std::to_string(i), 0), std::nullopt);
  EXPECT_TRUE(again.Restore(slots[1]));
  EXPECT_FALSE(again.Restore(slots[1]));                                // taken
  EXPECT_FALSE(again.Restore({slots[2].page + 1, slots[2].pages}));     // between slots
  EXPECT_FALSE(again.Restore({slots[2].page, 2}));                      // of another size
  EXPECT_FALSE(again.Restore({0, 16}));                                 // the extent's header
  EXPECT_FALSE(again.Restore({again.FirstPage(2) + 1, 16}));            // no such extent
  EXPECT_FALSE(again.Restore({again.FirstPage(1) + 1 + 16 * 15, 16}));  // over the end
  EXPECT_FALSE(again.Restore({again.FirstPage(1) + 1, 0}));
  EXPECT_FALSE(again.Restore({again.FirstPage(1) + 1, UINT32_MAX}));
  EXPECT_TRUE(again.Restore(slots[kSlots + 4]));  // in the other extent
  // What is free is what was not restored.
  std::set<uint32_t> free;
  while (const auto slot = again.Allocate(kLength)) free.insert(slot->page);
  EXPECT_EQ(free.size(), 2 * kSlots - 2);
  EXPECT_FALSE(free.contains(slots[1].page));
}

TEST_F(ExtentsTest, HeaderIsWantedOncePerSize) {
  Add(1);
  const Slot slot = *extents_.Allocate(kLength);
  EXPECT_TRUE(extents_.NeedsHeader(slot));
  const ExtentHeader first = extents_.NewHeader(slot);
  EXPECT_EQ(first.slot_pages, 16);
  EXPECT_FALSE(extents_.NeedsHeader(slot));
  EXPECT_EQ(extents_.RecordFor(slot).cut, first.cut);
  extents_.Free(slot);
  const Slot other = *extents_.Allocate(2 * kLength);
  EXPECT_TRUE(extents_.NeedsHeader(other));
  EXPECT_NE(extents_.NewHeader(other).cut, first.cut);
}

TEST_F(ExtentsTest, DrainedExtentServesAnotherSize) {
  Add(2);
  const std::vector<Slot> slots = Fill(kLength);
  EXPECT_FALSE(extents_.Allocate(2 * kLength).has_value());
  EXPECT_EQ(extents_.CandidatesToRecut(2 * kLength).size(), 2);
  EXPECT_TRUE(extents_.CandidatesToRecut(kLength).empty());
  extents_.Drain(0);
  for (const Slot slot : slots) {
    if (extents_.ExtentOf(slot.page) != 0) continue;
    extents_.Free(slot);
  }
  EXPECT_TRUE(extents_.Allocate(2 * kLength).has_value());
}

TEST_F(ExtentsTest, DrainingHoldsFreedSlotsBack) {
  Add(1);
  const std::vector<Slot> slots = Fill(kLength);
  extents_.SetAside(slots[0]);
  extents_.Drain(0);  // sends what was set aside to quarantine
  for (size_t i = 1; i < slots.size(); ++i) {
    extents_.Free(slots[i]);
    EXPECT_FALSE(extents_.Allocate(kLength).has_value());
  }
  for (const Slot slot : extents_.TakeQuarantined()) extents_.Free(slot);
  EXPECT_TRUE(extents_.Allocate(2 * kLength).has_value());
}

TEST_F(ExtentsTest, DrainingHoldsBackWhatIsFreeAlready) {
  Add(1);
  const std::vector<Slot> slots = Fill(kLength);
  extents_.NewHeader(slots[0]);
  extents_.Free(slots[0]);
  extents_.Free(slots[1]);
  extents_.Drain(0);
  EXPECT_FALSE(extents_.Allocate(2 * kLength).has_value());
  for (size_t i = 2; i < slots.size(); ++i) extents_.Free(slots[i]);
  EXPECT_FALSE(extents_.draining(0));
  EXPECT_TRUE(extents_.Allocate(2 * kLength).has_value());
}

// What could not be emptied is chosen again, or serves its own size after all.
TEST_F(ExtentsTest, AnExtentDoesNotDrainForEver) {
  Add(2);
  const std::vector<Slot> slots = Fill(kLength);
  for (const Slot slot : slots) {
    if (extents_.NeedsHeader(slot)) extents_.NewHeader(slot);
  }
  extents_.Drain(1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(extents_.CandidatesToRecut(2 * kLength).front(), 1);
  Slot drained;
  for (const Slot slot : slots) {
    if (extents_.ExtentOf(slot.page) == 1) drained = slot;
  }
  extents_.Free(drained);
  EXPECT_EQ(extents_.Allocate(kLength), drained);
  EXPECT_FALSE(extents_.draining(1));
}

TEST_F(ExtentsTest, SetAsideIsBounded) {
  Add(10);
  const std::vector<Slot> slots = Fill(kLength);
  for (const Slot slot : slots) extents_.SetAside(slot);
  EXPECT_LE(extents_.Stats().set_aside_bytes, extents_.bytes() / 100);
  EXPECT_EQ(extents_.TakeQuarantined().front(), slots.front());
}

TEST_F(ExtentsTest, DirtyIsToldOnce) {
  Add(3);
  extents_.MarkDirty(extents_.FirstPage(1) + 5);
  EXPECT_EQ(extents_.TakeDirty(), std::vector<uint32_t>{1});
  EXPECT_TRUE(extents_.TakeDirty().empty());
}

}  // namespace
}  // namespace terrace
