// Request traces: which blocks each request needs, in the order of its prefix. The format is that
// of the traces published with Mooncake (FAST'25): one JSON object per line with timestamp (ms),
// input_length, output_length (tokens) and hash_ids, one id per block, where an equal id means an
// equal whole prefix.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

struct TraceRequest {
  uint64_t timestamp_ms = 0;
  std::vector<uint64_t> blocks;  // root first
};
using Trace = std::vector<TraceRequest>;

// NotFound when there is no such file; InvalidArgument names the line that is not a request.
absl::StatusOr<Trace> ReadTrace(const std::string& path);
// Unavailable when the file cannot be written.
absl::Status WriteTrace(const Trace& trace, const std::string& path);

// Conversations of several turns. Each begins with one of a few system prompts, the first of
// which are the most popular; each turn sends all that was said before and something new. Among
// them single shots: a system prompt and a long document that is never seen again.
struct TraceOptions {
  uint64_t seed = 1;
  uint64_t conversations = 1000;
  uint64_t system_prompts = 8;
  uint64_t most_turns = 8;
  uint64_t single_shots = 0;
};
Trace GenerateTrace(const TraceOptions& options);

}  // namespace terrace
