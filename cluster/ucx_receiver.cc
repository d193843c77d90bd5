#include "cluster/ucx_receiver.h"

#include <utility>

#include "proto/status.h"

namespace terrace {

UcxReceiver::UcxReceiver(ConnectionId connection, ucp_worker_h worker, TransportHandler* handler,
                         TransportCounters* counters, absl::AnyInvocable<void(absl::Status)> lost)
    : connection_(connection),
      worker_(worker),
      handler_(handler),
      counters_(counters),
      lost_(std::move(lost)) {}

absl::Status UcxReceiver::Take(const PieceHeader& header, ByteSpan frame_part, void* data,
                               bool rendezvous) {
  if (rendezvous && header.payload_part != header.payload_bytes) {
    return absl::InvalidArgumentError("transport header: rendezvous of a part");
  }
  TERRACE_RETURN_IF_ERROR(inbound_.Take(header, frame_part));
  Add(counters_->bytes_received, header.frame_part + header.payload_part);
  if (header.message_complete()) Add(counters_->messages_received, 1);
  if (inbound_.frame_arrived()) {
    Landing landing = handler_->OnMessage(connection_, inbound_.frame(), header.payload_bytes);
    if (header.payload_bytes > 0) {
      writer_ = LandingWriter(std::move(landing), header.payload_bytes);
      arriving_ = true;
    }
  }
  if (rendezvous) {
    arriving_ = false;
    StartTransfer(data, header.payload_bytes);
  } else if (header.payload_part > 0) {
    writer_.Write({static_cast<const std::byte*>(data), header.payload_part});
    arriving_ = !header.message_complete();
    if (!arriving_) writer_.Finish(absl::OkStatus());
  }
  return absl::OkStatus();
}

void UcxReceiver::StartTransfer(void* descriptor, uint64_t bytes) {
  if (writer_.landing().pieces.empty()) {
    // Left alone, UCX tells the sender that its bytes were thrown away.
    writer_.Finish(absl::OkStatus());
    return;
  }
  auto owned = std::make_unique<Transfer>(
      Transfer{.receiver = this, .bytes = bytes, .writer = std::exchange(writer_, {})});
  Transfer* const transfer = owned.get();
  transfers_.emplace(transfer, std::move(owned));
  for (MutableByteSpan piece : transfer->writer.landing().pieces) {
    if (!piece.empty())
      transfer->pieces.push_back({.buffer = piece.data(), .length = piece.size()});
  }
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = &UcxReceiver::OnReceived;
  params.user_data = transfer;
  void* buffer = transfer->pieces[0].buffer;
  size_t count = bytes;
  if (transfer->pieces.size() > 1) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    params.datatype = ucp_dt_make_iov();
    buffer = transfer->pieces.data();
    count = transfer->pieces.size();
  }
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_, descriptor, buffer, count, &params);
  if (!UCS_PTR_IS_PTR(request)) EndTransfer(transfer, UCS_PTR_STATUS(request));
}

void UcxReceiver::OnReceived(void* request, ucs_status_t status, size_t length, void* user_data) {
  ucp_request_free(request);
  auto* const transfer = static_cast<Transfer*>(user_data);
  if (status == UCS_OK && length != transfer->bytes) status = UCS_ERR_MESSAGE_TRUNCATED;
  transfer->receiver->EndTransfer(transfer, status);
}

void UcxReceiver::EndTransfer(Transfer* transfer, ucs_status_t ucx_status) {
  absl::Status status = FromUcx(ucx_status, "receive");
  LandingWriter writer = std::move(transfer->writer);
  const uint64_t bytes = transfer->bytes;
  transfers_.erase(transfer);
  if (status.ok()) writer.Written(bytes);
  writer.Finish(status);
  if (!status.ok()) lost_(std::move(status));
}

void UcxReceiver::Fail(const absl::Status& why) {
  if (!std::exchange(arriving_, false)) return;
  writer_.Finish(why);
}

}  // namespace terrace
