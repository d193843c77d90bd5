// The bare UCX loop: the least code that moves blocks over UCX's TCP, in its fastest settings. It
// is the physical limit that benchmarks are judged against. Of the ways to use UCX (whole blocks
// or segment-sized pieces per active message, polling or sleeping) it keeps the fastest for each
// Setup.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "tests/bench/bench_loop.h"

namespace terrace {

// Starts the far process and connects to it.
absl::StatusOr<std::unique_ptr<BenchLoop>> CreateUcxLoop();

// The far side: prints its address to stdout, then serves until stdin ends.
int ServeUcxLoop();

}  // namespace terrace
