// Decode() of whatever a peer may send: no abort, no memory beyond the bounds, and what it accepts
// encodes to the same bytes.
#include <algorithm>
#include <cstdlib>

#include "proto/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const terrace::ByteSpan bytes = std::as_bytes(std::span(data, size));
  if (auto frame = terrace::Decode(bytes); frame.ok()) {
    const std::vector<std::byte> again = terrace::Encode(frame->request_id, frame->body);
    if (!std::equal(again.begin(), again.end(), bytes.begin(), bytes.end())) std::abort();
  }
  return 0;
}
