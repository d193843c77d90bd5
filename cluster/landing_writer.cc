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
  if (landing_.pieces.empty() || room == payload_bytes) {
    SkipFullPieces();
    return;
  }
  // The handler broke the contract; going on would write where nobody asked for bytes.
  PrintTo(stderr, "landing of {} bytes for a payload of {}\n", room, payload_bytes);
  std::abort();
}

void LandingWriter::SkipFullPieces() {
  while (piece_ < landing_.pieces.size() && in_piece_ == landing_.pieces[piece_].size()) {
    ++piece_;
    in_piece_ = 0;
  }
}

void LandingWriter::Write(ByteSpan bytes) {
  if (landing_.pieces.empty()) return;  // thrown away
  while (!bytes.empty()) {
    const MutableByteSpan room = landing_.pieces[piece_].subspan(in_piece_);
    const size_t count = std::min(bytes.size(), room.size());
    std::memcpy(room.data(), bytes.data(), count);
    Written(count);
    bytes = bytes.subspan(count);
  }
}

size_t LandingWriter::NextPlaces(size_t max_bytes, std::span<iovec> out) const {
  size_t used = 0;
  size_t skip = in_piece_;
  for (size_t i = piece_; i < landing_.pieces.size() && used < out.size() && max_bytes > 0; ++i) {
    const MutableByteSpan room = landing_.pieces[i].subspan(skip);
    skip = 0;
    if (room.empty()) continue;
    const size_t count = std::min(room.size(), max_bytes);
    out[used++] = {.iov_base = room.data(), .iov_len = count};
    max_bytes -= count;
  }
  return used;
}

void LandingWriter::Written(size_t bytes) {
  while (bytes > 0) {
    const MutableByteSpan room = landing_.pieces[piece_].subspan(in_piece_);
    const size_t count = std::min(bytes, room.size());
    if (landing_.progress) landing_.progress(room.first(count));
    in_piece_ += count;
    bytes -= count;
    SkipFullPieces();
  }
}

void LandingWriter::Finish(absl::Status status) {
  if (landing_.landed) std::exchange(landing_.landed, nullptr)(std::move(status));
  landing_ = Landing();
}

}  // namespace terrace
