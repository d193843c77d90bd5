// EnvelopeView::Parse of whatever memory, disk or a peer may hold. A fuzzer cannot guess the
// envelope's checksum, so the input is also tried sealed with the right one.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "proto/envelope.h"

namespace {

void Judge(terrace::ByteSpan bytes) {
  auto view = terrace::EnvelopeView::Parse(bytes);
  if (!view.ok()) return;
  std::vector<std::byte> again(terrace::kMaxEnvelopeBytes);
  again.resize(view->ToValue().EncodeTo(again));
  if (!std::ranges::equal(again, view->bytes())) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const terrace::ByteSpan bytes = std::as_bytes(std::span(data, size));
  Judge(bytes);
  if (size >= terrace::kEnvelopeFixedBytes) {
    std::vector<std::byte> sealed(bytes.begin(), bytes.end());
    uint16_t claimed;
    std::memcpy(&claimed, data + 6, sizeof(claimed));
    if (claimed >= terrace::kEnvelopeFixedBytes && claimed <= size) {
      uint64_t generation;
      std::memcpy(&generation, data + 64, sizeof(generation));
      terrace::SetGeneration(sealed, generation);
      Judge(sealed);
    }
  }
  return 0;
}
