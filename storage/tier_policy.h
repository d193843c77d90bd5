// What a tier keeps and what it gives up, as pure functions over plain values: no clock, no I/O,
// no thread. The node and the trace simulator (tests/sim) decide by these and by nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "proto/block.h"

namespace terrace {

// In turnovers. Chosen on traces: docs/decisions/0005-what-a-block-is-worth.md.
constexpr double kHalfLifeTurnovers = 1.5;

// A block's standing within its tier.
struct Rank {
  double score = 0;    // storage/frequency.h
  uint32_t depth = 0;  // index in its chain
};

// Whether `a` is given up before `b`.
inline bool GivenUpBefore(const Rank& a, const Rank& b) {
  return a.score != b.score ? a.score < b.score : a.depth > b.depth;
}

// Shares of a tier's bytes: eviction in the background starts above `high` and ends at `low`.
struct Watermarks {
  double high = 0;
  double low = 0;
};

// Of the host tier: docs/decisions/0003-watermarks.md. Over an ssd tier a block leaves only when it
// has been written, so room is made earlier: a twentieth of the tier, and of a small one as much as
// may be on its way to the device at once (64 MiB, a quarter at most).
constexpr Watermarks kHostMarks{.high = 0.99, .low = 0.98};
Watermarks HostMarksOverSsd(uint64_t capacity_bytes);

// OK when 0 < low <= high <= 1; InvalidArgument names high_mark and low_mark.
absl::Status Validate(const Watermarks& marks);

// Bytes that background eviction frees now: none up to the high mark, else down to the low one.
uint64_t BytesToFree(const Watermarks& marks, uint64_t occupied_bytes, uint64_t capacity_bytes);

// Blocks that a tier holds when full, judged by those it holds now; the unit of a turnover.
double CapacityInBlocks(uint64_t capacity_bytes, uint64_t blocks, uint64_t place_bytes);

// Whether a block that leaves a faster tier is written to the ssd tier. Reasoning output is not
// asked for again; what is asked for once (single shot) has to be seen twice before it costs the
// device a write. A tier that is not full admits whatever might come back.
bool AdmitsToSsd(TrafficClass traffic_class, bool seen_again, bool has_room);

// log2 of what a block is worth: its uses, each as much as the bytes that were not computed or
// fetched again. So no class starves because its blocks are large.
double Worth(double score, uint64_t bytes);

// Something that may be given up to make room.
struct Offer {
  double worth = 0;    // LogSum over its blocks; kNoScore when it holds none
  uint64_t bytes = 0;  // of memory

  double worth_per_byte() const;
};

// A block needs a place of its size and none is free. Either its own size's first victim goes
// (`own`, where there is one), or a stretch of memory cut for another size is cleared (one of
// `windows`): whichever is worth least per byte, the own victim on equal terms. Returns the index
// of the window to clear, or nothing for the own victim (or when there is no offer at all).
std::optional<size_t> ChooseWindow(const std::optional<Offer>& own, std::span<const Offer> windows);

}  // namespace terrace
