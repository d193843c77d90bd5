// What a session is once a node has granted it, free of gRPC.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/local_memory.h"
#include "proto/frame.h"

namespace terrace {

// The node's bounds on one session; a client that stays below them is never refused for load.
struct SessionLimits {
  uint32_t max_block_bytes = kMaxBlockBytes;
  uint32_t max_keys_per_frame = kMaxKeysPerFrame;
  uint32_t max_requests_in_flight = 64;
  uint64_t max_bytes_in_flight = 8 << 20;
  uint32_t max_reservations = 256;
  absl::Duration max_lease = absl::Seconds(10);
};

struct SessionInfo {
  uint64_t session_id = 0;
  SessionToken token{};
  std::vector<std::string> data_addresses;  // at least one
  std::string transport;                    // what they speak; "" where the node does not say
  std::string node_id;
  uint64_t incarnation = 0;
  std::string host_id;                        // of the machine that the node runs on
  std::string local_address;                  // where it shares its memory; "": it does not
  std::shared_ptr<const LocalMemory> memory;  // null: bytes travel
  SessionLimits limits;
};

}  // namespace terrace
