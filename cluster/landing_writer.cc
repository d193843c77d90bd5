#include "cluster/landing_writer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "proto/program.h"

namespace terrace {

LandingWriter::LandingWriter(Landing landing, uint64_t payload_bytes)
    : landing_(std::move(landing)) {
  uint64_t room = 0;
  for (MutableByteSpan piece : landing_.pieces) room += piece.size();
  if (landing_.pieces.empty() || room == payload_bytes) return;
  // The handler broke the contract; going on would write where nobody asked for bytes.
  PrintTo(stderr, "landing of {} bytes for a payload of {}\n", room, payload_bytes);
  std::abort();
}

void LandingWriter::Write(ByteSpan bytes) {
  if (landing_.pieces.empty()) return;  // thrown away
  while (!bytes.empty()) {
    const MutableByteSpan piece = landing_.pieces[piece_];
    const size_t count = std::min(bytes.size(), piece.size() - in_piece_);
    if (count > 0) {
      const MutableByteSpan to = piece.subspan(in_piece_, count);
      std::memcpy(to.data(), bytes.data(), count);
      if (landing_.progress) landing_.progress(to);
      bytes = bytes.subspan(count);
      in_piece_ += count;
    }
    if (in_piece_ == piece.size()) {
      ++piece_;
      in_piece_ = 0;
    }
  }
}

void LandingWriter::WrittenElsewhere() {
  if (!landing_.progress) return;
  for (MutableByteSpan piece : landing_.pieces) {
    if (!piece.empty()) landing_.progress(piece);
  }
}

void LandingWriter::Finish(absl::Status status) {
  if (landing_.landed) std::exchange(landing_.landed, nullptr)(std::move(status));
  landing_ = Landing();
}

}  // namespace terrace
