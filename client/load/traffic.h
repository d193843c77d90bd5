// The requests of a run, in order: from a trace, or made up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

// One request for a prefix: an id per block, root first. Equal id means equal whole prefix.
struct TrafficRequest {
  std::vector<uint64_t> hash_ids;
};

// Not thread-safe.
class Traffic {
 public:
  virtual ~Traffic() = default;
  // False at the end. InvalidArgument names the line that is not a request.
  virtual absl::StatusOr<bool> Next(TrafficRequest* request) = 0;
};

// Reads JSON lines with a field `hash_ids`; `timestamp`, `input_length` and `output_length` are
// there and not needed. At most `limit` requests; 0: all. InvalidArgument: cannot be read.
absl::StatusOr<std::unique_ptr<Traffic>> OpenTrace(const std::string& path, uint64_t limit);

// Conversations without end: each begins with one of a few system prompts, or where one that has
// rested for a while stopped, and each of its turns asks for all of its blocks so far and a few
// more. The same seed gives the same requests.
std::unique_ptr<Traffic> MakeConversations(uint64_t seed);

}  // namespace terrace
