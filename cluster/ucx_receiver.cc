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
  TERRACE_RETURN_IF_ERROR(inbound_.Take(header, frame_part));
  const uint64_t bytes = header.data_bytes();
  Add(counters_->bytes_received, header.frame_part + bytes);
  if (!inbound_.frame_arrived()) return absl::OkStatus();
  Add(counters_->messages_received, 1);
  Landing landing = handler_->OnMessage(connection_, inbound_.frame(), bytes);
  if (bytes == 0) return absl::OkStatus();
  LandingWriter writer(std::move(landing), bytes);
  if (rendezvous) {
    StartTransfer(std::move(writer), data, bytes);
  } else {
    writer.Write({static_cast<const std::byte*>(data), bytes});
    writer.Finish(absl::OkStatus());
  }
  return absl::OkStatus();
}

void UcxReceiver::StartTransfer(LandingWriter writer, void* descriptor, uint64_t bytes) {
  if (writer.landing().pieces.empty()) {
    // Left alone, UCX tells the sender that its bytes were thrown away.
    writer.Finish(absl::OkStatus());
    return;
  }
  auto owned = std::make_unique<Transfer>(
      Transfer{.receiver = this, .bytes = bytes, .writer = std::move(writer)});
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
  for (const auto& [transfer, owned] : std::exchange(transfers_, {})) owned->writer.Finish(why);
}

}  // namespace terrace
