// Sessions of workers and the leases that they hold. A session lives as long as its control
// stream; its token opens data connections. Thread-safe; no call blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_node/landing_memory.h"
#include "cache_node/options.h"
#include "cache_node/tiered_store.h"
#include "proto/block_key.h"
#include "proto/clock.h"
#include "proto/frame.h"
#include "proto/mutex.h"

namespace terrace {

struct Session {
  uint64_t id = 0;
  std::string tenant;
  std::string client_name;
  // What its connections hold together, counted by them against NodeLimits.
  std::atomic<uint32_t> connections{0};
  std::atomic<uint32_t> reservations{0};

  // Where it writes what it puts; null where it does not. Thread-safe.
  std::shared_ptr<const LandingMemory> landing() const {
    MutexLock lock(&mutex_);
    return landing_;
  }
  void SetLanding(std::shared_ptr<const LandingMemory> landing) {
    MutexLock lock(&mutex_);
    landing_ = std::move(landing);
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const LandingMemory> landing_ ABSL_GUARDED_BY(mutex_);
};

struct OpenedSession {
  std::shared_ptr<Session> session;
  SessionToken token{};  // the table keeps only its hash
};

class SessionTable {
 public:
  SessionTable(Clock* clock, const NodeLimits& limits) : clock_(clock), limits_(limits) {}
  // Every lease is released; the store is still there.
  ~SessionTable() = default;

  // ResourceExhausted at max_sessions.
  absl::StatusOr<OpenedSession> Open(const std::string& tenant, const std::string& client_name);
  // The token is worth nothing from here on and the leases are released. Connections are not
  // known here: who ends a session closes them. Harmless when there is no such session.
  void End(uint64_t session_id);
  // Null unless the token is that of a live session. Looked up by its hash, so that timing does
  // not tell how much of a guess was right.
  std::shared_ptr<Session> Authenticate(const SessionToken& token) const;

  // Keeps `refs` until Release, End, or the first grant or ExpireLeases (the node calls it once a
  // second at least) after `duration` (capped by max_lease) has passed. 0, and the
  // references are dropped, when the session is over or holds max_leases already, or when all
  // leases would hold more than max_leased_bytes (a block counts as often as it is leased).
  uint64_t GrantLease(uint64_t session_id, std::vector<BlockRef> refs, absl::Duration duration);
  // False when this session holds no such lease (any more).
  bool ReleaseLease(uint64_t session_id, uint64_t lease_id);
  // Releases what has expired; returns how long until the next lease does, or InfiniteDuration.
  absl::Duration ExpireLeases();

  size_t session_count() const;
  size_t lease_count() const;
  uint64_t leased_bytes() const;
  uint64_t leases_refused() const;   // by a bound
  size_t reservation_count() const;  // of all sessions' connections

 private:
  struct Lease {
    uint64_t session_id = 0;
    absl::Duration expires;  // an instant of clock_
    uint64_t bytes = 0;
    std::vector<BlockRef> refs;
  };
  struct Entry {
    std::shared_ptr<Session> session;
    Digest token_hash;
    absl::flat_hash_set<uint64_t> leases;
  };
  using TokenKey = std::array<uint8_t, 32>;

  // Takes a lease out; its references are released by the caller, outside the lock.
  std::vector<BlockRef> Take(uint64_t lease_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // All that have expired by `now`.
  std::vector<std::vector<BlockRef>> TakeExpired(absl::Duration now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock* const clock_;
  const NodeLimits limits_;
  mutable Mutex mutex_;
  uint64_t next_session_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_lease_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<uint64_t, Entry> sessions_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<TokenKey, uint64_t> by_token_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Lease> leases_ ABSL_GUARDED_BY(mutex_);
  uint64_t leased_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t leases_refused_ ABSL_GUARDED_BY(mutex_) = 0;
  // (expiry, lease), the soonest first.
  absl::btree_set<std::pair<absl::Duration, uint64_t>> expiries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
