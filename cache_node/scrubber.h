// Reads every block of the ssd tier and verifies it, behind the back of everybody: what fails its
// checks is dropped and counted, as if a reader had met it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_node/cold_tier.h"
#include "proto/mutex.h"

namespace terrace {

struct ScrubProgress {
  uint64_t blocks = 0, blocks_total = 0;  // come by so far, and in the tier when it began
  uint64_t bytes = 0;                     // read and right
  // Of `blocks`:
  uint64_t corrupt = 0;     // failed their checks, and are gone
  uint64_t unreadable = 0;  // are there and could not be read: the device fails, or is too busy
  uint64_t left = 0;        // left the tier between being listed and being read
  bool done = false;
  absl::Status status;  // of the scrub itself, when done
};

// Thread-safe. One scrub at a time, on a thread of its own.
class Scrubber {
 public:
  // `tier` outlives this; null: there is none.
  explicit Scrubber(ColdTier* tier) : tier_(tier) {}
  ~Scrubber();  // ends a scrub in progress
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  // Called on the scrub's thread, some times a second, also while it waits for the sake of the
  // rate, and when it is done; false ends it.
  using Observer = std::function<bool(const ScrubProgress&)>;
  // At most `bytes_per_second`, 0: as fast as two reads at a time go. FailedPrecondition without an
  // ssd tier; ResourceExhausted while another scrub runs.
  absl::Status Start(uint64_t bytes_per_second, Observer observer);

 private:
  void Run(uint64_t bytes_per_second, const Observer& observer);
  // Waits for the instant, and tells meanwhile; false when the scrub is to end.
  bool WaitUntil(absl::Duration due, absl::FunctionRef<bool()> tell);

  ColdTier* const tier_;
  Mutex mutex_;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar changed_;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
