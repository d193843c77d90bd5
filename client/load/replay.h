// Drives a node as inference workers would, and judges every byte that comes back.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/load/histogram.h"
#include "client/load/traffic.h"

namespace terrace {

struct ReplayOptions {
  NamespaceDefinition ns;
  uint64_t workers = 4;
  absl::Duration time_limit = absl::InfiniteDuration();
  // Distinguishes the keys of one run from those of another.
  uint64_t seed = 1;
};

struct ReplayReport {
  uint64_t requests = 0;
  uint64_t blocks_requested = 0;
  std::map<std::string, uint64_t> hits;  // tier -> blocks of leading runs, read and judged
  uint64_t misses = 0;
  uint64_t wrong_bytes = 0;
  uint64_t errors = 0;       // outcomes that a sound node never causes
  uint64_t unreachable = 0;  // requests not made, since there was no node
  uint64_t timeouts = 0;     // as good as a miss: the node was too slow, or frozen
  uint64_t stuck = 0;        // operations that were a second late in ending
  uint64_t no_space = 0;
  uint64_t put_bytes = 0, get_bytes = 0;
  uint64_t local_bytes = 0;                  // of get_bytes: read from the node's memory
  absl::Duration elapsed, putting, getting;  // the latter: while at least one was under way
  LatencyHistogram match_latency, get_latency;
  std::string first_error;

  uint64_t hit_blocks() const;
  void Merge(const ReplayReport& other);
};

// What is known while a run goes on. Thread-safe.
struct ReplayProgress {
  std::atomic<uint64_t> requests{0}, blocks{0}, hits{0}, bytes{0};
};

class Replay {
 public:
  // All outlive the run. `stop` ends it after the requests that are being served.
  Replay(Client* client, Traffic* traffic, ReplayOptions options, const std::atomic<bool>* stop);
  ~Replay();

  // Blocks until the traffic, the time or the patience of `stop` has ended. Once. A status is an
  // error of the traffic or of the namespace; the report holds what ran all the same.
  absl::Status Run(ReplayReport* report);
  const ReplayProgress& progress() const;

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace terrace
