#include "storage/cold_operation.h"

#include <algorithm>

#include "fmt/format.h"

namespace terrace {
namespace {

constexpr size_t WholePages(size_t bytes) { return bytes / kPageBytes * kPageBytes; }

}  // namespace

void ColdOperation::Complete(int64_t result) {
  if (result < 0) return Ended(IoStatus(result));
  const uint64_t wanted = bytes();
  const uint64_t moved = WholePages(std::min(static_cast<uint64_t>(result), wanted));
  if (moved == wanted) return Ended(absl::OkStatus());
  if (moved == 0) {
    return Ended(absl::UnavailableError(
        fmt::format("ssd: the device stopped {} bytes before the end", wanted)));
  }
  Advance(moved);
  IoRequest* const rest = this;
  folder->options_.io->Submit({&rest, 1});
}

ColdRead::ColdRead(ColdFolder* folder, ColdGet get, ColdPlace place)
    : ColdOperation(folder, std::move(get.done), std::move(get.released)),
      key(get.key),
      place(place),
      envelope(get.envelope),
      value(get.value) {
  kind = IoKind::kRead;
  const size_t whole = WholePages(value.size());
  AddPiece(MutableByteSpan(pages_->header.bytes));
  if (whole > 0) AddPiece(value.first(whole));
  if (whole < value.size()) AddPiece(MutableByteSpan(pages_->tail.bytes));
}

void ColdRead::Ended(absl::Status status) {
  if (status.ok()) {
    const size_t whole = WholePages(value.size());
    std::memcpy(value.data() + whole, pages_->tail.bytes, value.size() - whole);
    status = folder->JudgeRead(key, place, ByteSpan(pages_->header.bytes), value, envelope);
  }
  Release();
  folder->OnRead(this, status);
}

ColdWrite::ColdWrite(ColdFolder* folder, ColdPut put, const BlockRecord& record,
                     ColdTable::Index index)
    : ColdOperation(folder, std::move(put.done), std::move(put.released)),
      key(put.key),
      durable(put.durable),
      record(record),
      index(index),
      envelope_(put.envelope),
      value_(put.value) {
  kind = IoKind::kWrite;
}

void ColdWrite::TakeInline() {
  inline_block.reserve(envelope_.size() + value_.size());
  inline_block.append(AsText(envelope_)).append(AsText(value_));
}

void ColdWrite::Aim(int to_file, uint64_t to_offset, const SlotRecord& slot) {
  pages_ = std::make_unique<ColdPages>();
  EncodeHeaderPage(envelope_, slot, MutableByteSpan(pages_->header.bytes));
  file = to_file;
  offset = to_offset;
  const size_t whole = WholePages(value_.size());
  AddPiece(ByteSpan(pages_->header.bytes));
  if (whole > 0) AddPiece(value_.first(whole));
  if (whole == value_.size()) return;
  const ByteSpan rest = value_.subspan(whole);
  pages_->tail = {};
  std::memcpy(pages_->tail.bytes, rest.data(), rest.size());
  AddPiece(ByteSpan(pages_->tail.bytes));
}

void ColdWrite::Ended(absl::Status status) {
  pages_.reset();
  Release();
  folder->OnWritten(this, status);
}

HeaderWrite::HeaderWrite(ColdFolder* folder, const ExtentHeader& header, int to_file)
    : extent(header.extent), folder_(folder) {
  EncodeExtentHeader(header, MutableByteSpan(page_.bytes));
  kind = IoKind::kWrite;
  file = to_file;
  AddPiece(ByteSpan(page_.bytes));
}

void HeaderWrite::Complete(int64_t result) { folder_->OnHeaderWritten(this, result == kPageBytes); }

}  // namespace terrace
