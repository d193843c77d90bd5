// What senders of every transport do with a message: judge its sizes, and tell its end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "cluster/transport.h"

namespace terrace {

// InvalidArgument beyond kMaxFrameBytes or kMaxPayloadBytes, with both figures.
absl::Status CheckSizes(size_t frame_bytes, uint64_t payload_bytes);

// Calls `sent`, if there is one and it has not been called.
void Tell(OutgoingMessage& message, absl::Status status);

}  // namespace terrace
