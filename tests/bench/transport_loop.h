// The bare loop's pattern through cluster/transport.h.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/bench/bench_loop.h"

namespace terrace {

struct TransportLoopOptions {
  bool checksum = false;  // the receiver checksums each block as it lands
};

absl::StatusOr<std::unique_ptr<BenchLoop>> CreateTransportLoop(TransportLoopOptions options);

// The far side: prints its address to stdout, then serves until stdin ends.
int ServeTransportLoop(TransportLoopOptions options);

}  // namespace terrace
