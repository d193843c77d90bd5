// Files that outlive the process which serves: shared memory above all. Whoever runs that process
// keeps them under names and hands them to the next one (cache_node/supervisor.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "proto/descriptor.h"

namespace terrace {

// Thread-safe.
class DescriptorStore {
 public:
  static constexpr size_t kMaxNameBytes = 64;

  virtual ~DescriptorStore() = default;

  // The file is kept from now on, instead of what was kept under that name before. Blocks for two
  // seconds at most. Unavailable: whoever keeps them is gone or does not answer.
  virtual absl::Status Keep(std::string_view name, const Descriptor& file) = 0;
  // Gives up all whose names begin so, taken or not. When it returns OK, files that nobody has
  // open elsewhere have ended. Blocks, and errors, as Keep.
  virtual absl::Status DropAll(std::string_view prefix) = 0;
  // What an earlier process has left under that name, once; empty: nothing.
  virtual Descriptor Take(std::string_view name) = 0;
};

// What a process knows of those that served before it.
struct Restarts {
  uint64_t count = 0;
  std::string why;  // how the last one ended; empty: there was none
  // Whether files of theirs are there: also those of another supervisor (service_manager.h).
  bool kept = false;
};

}  // namespace terrace
