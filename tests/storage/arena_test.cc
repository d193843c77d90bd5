#include "storage/arena.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr uint64_t kChunk = 2 << 20;
constexpr PlaceClass kSmall{4 << 10, 256};
constexpr PlaceClass kMedium{64 << 10, 256};
constexpr PlaceClass kLarge{1 << 20, 512};

int owner;  // any address will do

// Places as [begin, end) with their side records; checks that no two overlap.
class Extents {
 public:
  void Add(uint64_t begin, uint64_t bytes) {
    const auto next = extents_.lower_bound(begin);
    if (next != extents_.end()) {
      ASSERT_LE(begin + bytes, next->first);
    }
    if (next != extents_.begin()) {
      ASSERT_LE(std::prev(next)->second, begin);
    }
    extents_[begin] = begin + bytes;
  }
  void Remove(uint64_t begin) { ASSERT_EQ(extents_.erase(begin), 1); }
  uint64_t end() const { return extents_.empty() ? 0 : extents_.rbegin()->second; }

 private:
  std::map<uint64_t, uint64_t> extents_;
};

std::vector<Place> FillUp(Arena* arena, PlaceClass size) {
  std::vector<Place> places;
  while (const auto place = arena->Allocate(size, &owner)) places.push_back(*place);
  return places;
}

TEST(ClassFor, RoundsUp) {
  EXPECT_EQ(ClassFor(4096, 196), (PlaceClass{4096, 256}));
  EXPECT_EQ(ClassFor(4097, 256), (PlaceClass{8192, 256}));
  EXPECT_EQ(ClassFor(64 << 20, 257), (PlaceClass{64 << 20, 512}));
  EXPECT_EQ(ClassFor(1 << 20, 1024), (PlaceClass{1 << 20, 1024}));
  EXPECT_EQ(ClassFor(1 << 20, 2240), (PlaceClass{1 << 20, 2560}));
}

TEST(Arena, PlacesAreAligned) {
  Arena arena(64 * kChunk, kChunk);
  std::mt19937 random(3);
  const PlaceClass classes[] = {kSmall, kMedium, {100 << 10, 1024}, {3 << 20, 2560}};
  while (const auto place = arena.Allocate(classes[random() % 4], &owner)) {
    ASSERT_EQ(place->offset % kPlaceAlignment, 0);
    ASSERT_EQ(place->side_offset % 64, 0);
  }
}

TEST(Arena, AllOfTheMemoryIsUsed) {
  struct Case {
    PlaceClass size;
    double share;
  };
  for (const auto& [size, share] : {Case{kSmall, .98}, Case{kMedium, .98}, Case{kLarge, .97},
                                    Case{{64 << 20, 512}, .90}, Case{{100 << 10, 2560}, .97}}) {
    Arena arena(1024 * kChunk, kChunk);
    FillUp(&arena, size);
    EXPECT_GE(static_cast<double>(arena.bytes_in_use()) / arena.size(), share) << size.place_bytes;
  }
}

TEST(Arena, ChunksThatAreNoUsualRegionServeAsAShorterOne) {
  Arena arena(17 * kChunk, kChunk);  // a 1 MiB class would like longer regions
  const size_t filled = FillUp(&arena, kLarge).size();
  EXPECT_EQ(arena.Stats().free_chunks, 0);
  EXPECT_GE(filled, 17);
}

TEST(Arena, CanEverFit) {
  Arena arena(4 * kChunk, kChunk);
  EXPECT_TRUE(arena.CanEverFit(kSmall));
  EXPECT_TRUE(arena.CanEverFit({8 * (1 << 20) - 4096, 2560}));
  EXPECT_FALSE(arena.CanEverFit({8 << 20, 256}));  // no room for the side record
  EXPECT_TRUE(arena.Allocate({8 * (1 << 20) - 4096, 2560}, &owner).has_value());
  Arena nothing(kChunk - 1, kChunk);
  EXPECT_FALSE(nothing.CanEverFit(kSmall));
  EXPECT_FALSE(nothing.Allocate(kSmall, &owner).has_value());
}

TEST(Arena, AnEmptyRegionServesAnotherClass) {
  Arena arena(8 * kChunk, kChunk);
  const std::vector<Place> places = FillUp(&arena, kMedium);
  EXPECT_FALSE(arena.Allocate(kLarge, &owner).has_value());
  for (const Place& place : places) arena.Free(place.offset);
  EXPECT_EQ(arena.Stats().free_chunks, 8);
  EXPECT_EQ(arena.Stats().longest_free_run, 8);
  EXPECT_TRUE(arena.Stats().classes.empty());
  EXPECT_EQ(arena.allocatable_bytes(), arena.size());
  EXPECT_FALSE(FillUp(&arena, kLarge).empty());
}

TEST(Arena, FillsTheFullestRegionSoThatOthersRunEmpty) {
  Arena arena(64 * kChunk, kChunk);
  std::vector<Place> places = FillUp(&arena, kMedium);
  std::mt19937 random(5);
  std::shuffle(places.begin(), places.end(), random);
  const size_t kept = places.size() / 4;
  while (places.size() > kept) {
    arena.Free(places.back().offset);
    places.pop_back();
  }
  // A steady state of random frees and allocations packs what is left.
  for (int i = 0; i < 200'000; ++i) {
    std::swap(places[random() % places.size()], places.back());
    arena.Free(places.back().offset);
    places.back() = arena.Allocate(kMedium, &owner).value();
  }
  EXPECT_GE(arena.Stats().free_chunks, 40);
}

TEST(Arena, WindowsHoldNoRegionOfTheClassAndCoverTheRest) {
  constexpr uint64_t kTiny = 64 << 10;
  Arena arena(32 * kTiny, kTiny);
  const PlaceClass a{4 << 10, 256}, b{16 << 10, 256};
  int a_owner, b_owner;
  while (arena.Stats().free_chunks > 16) arena.Allocate(a, &a_owner);
  while (arena.Allocate(b, &b_owner)) continue;
  std::vector<bool> seen(32);
  uint32_t cursor = 5;
  for (int look = 0; look < 8; ++look) {
    for (const Arena::Window& window : arena.Windows(b, 2, 4, &cursor)) {
      EXPECT_GE(window.chunks, 2);
      EXPECT_TRUE(arena.ForEachOwner(window, [&](void* found) { return found == &a_owner; }));
      for (uint32_t i = 0; i < window.chunks; ++i) seen[window.first + i] = true;
    }
  }
  EXPECT_EQ(std::ranges::count(seen, true), 16);
}

TEST(Arena, ClearingAWindowMakesRoom) {
  Arena arena(16 * kChunk, kChunk);
  std::vector<Place> places(16 * 512);
  size_t count = 0;
  while (const auto place = arena.Allocate(kSmall, &places[count])) places[count++] = *place;
  EXPECT_TRUE(arena.HoldsOtherClasses(kLarge));
  EXPECT_FALSE(arena.HoldsOtherClasses(kSmall));
  uint32_t cursor = 0;
  const auto windows = arena.Windows(kLarge, arena.MinChunks(kLarge), 1, &cursor);
  ASSERT_EQ(windows.size(), 1);
  std::vector<Place*> owners;
  arena.ForEachOwner(windows[0], [&](void* place) {
    owners.push_back(static_cast<Place*>(place));
    return true;
  });
  EXPECT_GT(owners.size(), 400);
  EXPECT_FALSE(arena.Allocate(kLarge, &owner).has_value());
  for (const Place* place : owners) arena.Free(place->offset);
  EXPECT_TRUE(arena.Allocate(kLarge, &owner).has_value());
}

// Random use against a model: no overlap, exact totals, nothing lost at the end.
TEST(Arena, Model) {
  Arena arena(64 * kChunk, kChunk);
  std::mt19937 random(11);
  const PlaceClass classes[] = {kSmall, kMedium, kLarge, {200 << 10, 2560}, {5 << 20, 512}};
  struct Live {
    Place place;
    PlaceClass size;
  };
  std::vector<Live> live;
  Extents extents;
  uint64_t in_use = 0;
  for (int step = 0; step < 60'000; ++step) {
    const PlaceClass size = classes[random() % 5];
    const auto place = random() % 100 < 52 ? arena.Allocate(size, &owner) : std::nullopt;
    if (place) {
      ASSERT_NO_FATAL_FAILURE(extents.Add(place->offset, size.place_bytes));
      ASSERT_NO_FATAL_FAILURE(extents.Add(place->side_offset, size.side_bytes));
      live.push_back({*place, size});
      in_use += size.bytes();
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      extents.Remove(live.back().place.offset);
      extents.Remove(live.back().place.side_offset);
      arena.Free(live.back().place.offset);
      in_use -= live.back().size.bytes();
      live.pop_back();
    }
    ASSERT_EQ(arena.bytes_in_use(), in_use);
    ASSERT_LE(in_use + arena.allocatable_bytes(), arena.size());
    ASSERT_LE(extents.end(), arena.size());
  }
  for (const Live& block : live) arena.Free(block.place.offset);
  EXPECT_EQ(arena.allocatable_bytes(), arena.size());
  EXPECT_EQ(arena.Stats().longest_free_run, 64);
  EXPECT_EQ(arena.Stats().fragmentation, 0);
}

}  // namespace
}  // namespace terrace
