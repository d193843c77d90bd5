#include "cluster/ucx_sender.h"

#include <algorithm>
#include <utility>

#include "cluster/outgoing.h"
#include "fmt/format.h"
#include "proto/status.h"

namespace terrace {
namespace {

// Of one connection before the others and the receiving side get their turn.
constexpr int kPiecesPerTurn = 16;

}  // namespace

UcxSender::UcxSender(ucp_ep_h endpoint, const UcxSendLimits* limits, TransportCounters* counters,
                     absl::AnyInvocable<void()> ready)
    : endpoint_(endpoint), limits_(limits), counters_(counters), ready_(std::move(ready)) {}

void UcxSender::Greet(PieceKind kind) {
  queue_.push_front({.next = {.kind = kind}});
  ready_();
}

void UcxSender::Open() {
  open_ = true;
  ready_();
}

void UcxSender::Enqueue(OutgoingMessage message) {
  uint64_t payload_bytes = 0;
  for (ByteSpan part : message.payload) payload_bytes += part.size();
  absl::Status status = CheckSizes(message.frame.size(), payload_bytes);
  if (status.ok() && queue_.size() >= limits_->max_queued_messages) {
    status = absl::ResourceExhaustedError(
        fmt::format("{} messages wait on this connection", queue_.size()));
  }
  if (!status.ok()) {
    Tell(message, std::move(status));
    return;
  }
  const PieceHeader first{.frame_bytes = static_cast<uint32_t>(message.frame.size()),
                          .sequence = sequence_++,
                          .payload_bytes = payload_bytes};
  queue_.push_back({.message = std::move(message), .next = first});
  ready_();
}

bool UcxSender::MayPump() const {
  if (!broken_.ok() || next_ == queue_.size() || pieces_out_ >= limits_->max_pieces) return false;
  const PieceHeader& next = queue_[next_].next;
  if (next.kind == PieceKind::kData && !open_) return false;
  return bytes_out_ == 0 || bytes_out_ + next.payload_bytes <= limits_->max_in_flight_bytes;
}

absl::StatusOr<bool> UcxSender::Pump() {
  int handed_over = 0;
  while (handed_over < kPiecesPerTurn && MayPump()) {
    TERRACE_RETURN_IF_ERROR(SendPiece());
    ++handed_over;
  }
  TERRACE_RETURN_IF_ERROR(broken_);
  if (MayPump()) ready_();
  return handed_over > 0;
}

// Describes the next piece of `message`, and moves the message past it.
void UcxSender::Fill(Outbound* message, Piece* piece, bool* rendezvous) {
  PieceHeader& next = message->next;
  next.frame_part = std::min<uint64_t>(next.frame_bytes - next.frame_offset,
                                       limits_->max_header_bytes - kPieceHeaderBytes);
  const uint64_t room = limits_->segment_bytes - kPieceHeaderBytes - next.frame_part;
  *rendezvous = next.data_bytes() > room;
  piece->data.clear();
  for (ByteSpan part : message->message.payload) {
    if (!next.frame_complete() || part.empty()) continue;
    if (message->message.sending) message->message.sending(part);
    piece->data.push_back({.buffer = const_cast<std::byte*>(part.data()), .length = part.size()});
  }
  piece->message = message;
  piece->bytes = next.data_bytes();
  piece->header.resize(kPieceHeaderBytes + next.frame_part);
  EncodePieceHeader(next, std::span(piece->header).first<kPieceHeaderBytes>());
  const auto frame = message->message.frame.begin() + next.frame_offset;
  std::copy(frame, frame + next.frame_part, piece->header.begin() + kPieceHeaderBytes);
  message->handed_over = next.frame_complete();
  next.frame_offset += next.frame_part;
}

absl::Status UcxSender::SendPiece() {
  if (idle_.empty()) {
    pieces_.push_back(std::make_unique<Piece>(Piece{.sender = this}));
    idle_.push_back(pieces_.back().get());
  }
  Piece* const piece = idle_.back();
  idle_.pop_back();
  Outbound* const message = &queue_[next_];
  bool rendezvous = false;
  Fill(message, piece, &rendezvous);
  if (message->handed_over) ++next_;

  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  // The reply endpoint is how the other side knows which connection this came from.
  params.flags =
      UCP_AM_SEND_FLAG_REPLY | (rendezvous ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER);
  params.cb.send = &UcxSender::OnSent;
  params.user_data = piece;
  const void* buffer = piece->data.empty() ? nullptr : piece->data[0].buffer;
  size_t count = piece->bytes;
  if (piece->data.size() > 1) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    params.datatype = ucp_dt_make_iov();
    buffer = piece->data.data();
    count = piece->data.size();
  }
  ++message->pieces_out;
  ++pieces_out_;
  bytes_out_ += piece->bytes;
  Add(counters_->payload_in_flight, piece->bytes);
  const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_, kPieceMessageId, piece->header.data(),
                                                   piece->header.size(), buffer, count, &params);
  if (!UCS_PTR_IS_PTR(request)) Complete(piece, UCS_PTR_STATUS(request));
  return broken_;
}

void UcxSender::OnSent(void* request, ucs_status_t status, void* user_data) {
  ucp_request_free(request);
  Piece* const piece = static_cast<Piece*>(user_data);
  UcxSender* const sender = piece->sender;
  sender->Complete(piece, status);
  sender->ready_();
}

void UcxSender::Complete(Piece* piece, ucs_status_t status) {
  Outbound* const message = piece->message;
  --message->pieces_out;
  --pieces_out_;
  bytes_out_ -= piece->bytes;
  Subtract(counters_->payload_in_flight, piece->bytes);
  if (status == UCS_OK) {
    const size_t frame_part = piece->header.size() - kPieceHeaderBytes;
    Add(counters_->bytes_sent, piece->bytes + frame_part);
  } else {
    message->failed = true;
    if (broken_.ok()) broken_ = FromUcx(status, "send");
  }
  idle_.push_back(piece);
  Retire();
}

void UcxSender::Retire() {
  while (!queue_.empty()) {
    Outbound& front = queue_.front();
    if (!front.handed_over || front.pieces_out > 0 || front.failed) return;
    if (front.next.kind == PieceKind::kData) Add(counters_->messages_sent, 1);
    OutgoingMessage message = std::move(front.message);
    queue_.pop_front();
    --next_;
    Tell(message, absl::OkStatus());
  }
}

void UcxSender::FailAll(const absl::Status& why) {
  while (!queue_.empty()) {
    OutgoingMessage message = std::move(queue_.front().message);
    queue_.pop_front();
    Tell(message, why);
  }
}

}  // namespace terrace
