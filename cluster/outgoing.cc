#include "cluster/outgoing.h"

#include <utility>

#include "fmt/format.h"

namespace terrace {

absl::Status CheckSizes(size_t frame_bytes, uint64_t payload_bytes) {
  if (frame_bytes > kMaxFrameBytes) {
    return absl::InvalidArgumentError(
        fmt::format("frame of {} bytes, at most {}", frame_bytes, kMaxFrameBytes));
  }
  if (payload_bytes > kMaxPayloadBytes) {
    return absl::InvalidArgumentError(
        fmt::format("payload of {} bytes, at most {}", payload_bytes, kMaxPayloadBytes));
  }
  return absl::OkStatus();
}

void Tell(OutgoingMessage& message, absl::Status status) {
  if (message.sent) std::exchange(message.sent, nullptr)(std::move(status));
}

}  // namespace terrace
