// What callers ask of the ssd tier and what they hear back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "proto/block.h"
#include "proto/block_key.h"
#include "proto/bytes.h"
#include "storage/extents.h"

namespace terrace {

enum class Presence : uint8_t {
  kAbsent,
  kHere,
  kAskAgain,  // the folder is still loading and has not met this key yet
};

struct ColdBlock {
  Presence presence = Presence::kAbsent;
  // The rest for kHere only.
  uint32_t length = 0;
  uint16_t envelope_bytes = 0;
  uint16_t depth = 0;  // 65535: that or more
  double score = 0;
};

// `done` is called once, on any thread and perhaps before the call that takes the request returns;
// `released`, which may be empty, once when the memory named here is free again: usually before
// `done`, but after it when the device hangs. Neither may wait for the ssd tier.
//
// Put answers:
//   OK                  the block is here (`durable`: it survives a power cut), or was already
//                       (`durable`: and can be read)
//   InvalidArgument     envelope, key and value do not fit together, or memory is not aligned
//   FailedPrecondition  larger than the folder can ever hold
//   ResourceExhausted   no slot now: give up some blocks first
//   Aborted             nothing is to be given up for it, try again: the key is being written or
//                       deleted right now, too many requests, or the folder is still loading
//   Cancelled           deleted while it was written
//   Unavailable         the device or the catalogue fails
//   DeadlineExceeded    the device hangs; whether the block is here is not known
struct ColdPut {
  BlockKey key;
  ByteSpan envelope;  // encoded, of `key` and `value`; copied
  ByteSpan value;     // begins at a multiple of 4 KiB; not verified here
  double score = 0;
  uint32_t expires_at = 0;  // Unix seconds, 0: never
  bool durable = false;
  absl::AnyInvocable<void(absl::Status)> done;
  absl::AnyInvocable<void()> released;
};

// Get answers:
//   OK                  envelope and value are there, of this key, all checksums verified
//   NotFound            a miss
//   DataLoss            what was read is not the block: counted, a miss; the block is dropped
//   InvalidArgument     the memory has not the sizes that Find told, or is not aligned
//   Aborted, Unavailable, DeadlineExceeded as above; a miss for now
// After anything but OK the memory holds anything.
struct ColdGet {
  BlockKey key;
  MutableByteSpan envelope;  // of ColdBlock::envelope_bytes
  MutableByteSpan value;     // of ColdBlock::length, begins at a multiple of 4 KiB
  absl::AnyInvocable<void(absl::Status)> done;
  absl::AnyInvocable<void()> released;
};

// One block in the order of giving up.
struct ColdVictim {
  BlockKey key;
  uint32_t length = 0;
  double score = 0;
  uint32_t depth = 0;
};

// Why blocks are deleted; each reason is counted.
enum class ColdLeave : uint8_t { kEvicted, kExpired, kForgotten, kCorrupt };

enum class FolderHealth : uint8_t {
  kHealthy,
  kWritesFail,  // full or failing: reads and what is here go on, writes are tried now and then
  kHangs,       // requests do not come back; reads go on unless one of them hangs
};

struct ColdFolderStats {
  std::string path;
  FolderHealth health = FolderHealth::kHealthy;
  bool loaded = false;
  bool rebuilding = false;
  std::string load_error;    // loading failed: why; empty otherwise
  std::string writes_error;  // the last one, while no write has succeeded since; or empty
  double load_progress = 0;  // 0 to 1
  uint64_t budget_bytes = 0;
  uint64_t slot_budget_bytes = 0;  // of all extents that the budget has room for
  uint64_t capacity_bytes = 0;     // of extents made so far
  uint64_t occupied_bytes = 0;     // slots not free
  uint64_t inline_bytes = 0;       // blocks within the catalogue
  uint64_t catalogue_bytes = 0;    // on disk, inline blocks included
  uint64_t memory_bytes = 0;       // table, arena and the catalogue's caches
  uint64_t value_bytes = 0;        // blocks' lengths
  uint64_t blocks = 0;
  ExtentStats extents;
  uint64_t in_flight = 0;
  uint64_t puts = 0, puts_existing = 0, puts_no_space = 0, puts_failed = 0;
  uint64_t gets = 0, gets_missed = 0, gets_failed = 0;
  uint64_t user_bytes_written = 0;    // lengths of blocks put
  uint64_t device_bytes_written = 0;  // to extents; the catalogue's are not counted
  uint64_t corrupt = 0;               // blocks dropped because they failed their checks
  uint64_t evicted = 0, expired = 0, forgotten = 0;
  uint64_t lost_at_load = 0;  // catalogue entries that named no slot of ours
  uint64_t overdue = 0;       // requests that hang now
  uint64_t syncs = 0, failed_syncs = 0;
};

}  // namespace terrace
