// The receiving half of one UCX connection: what arrives next, and the landings UCX is filling.
// Lives on the transport's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cluster/inbound_message.h"
#include "cluster/landing_writer.h"
#include "cluster/transport.h"
#include "cluster/transport_counters.h"
#include "cluster/ucx_handles.h"

namespace terrace {

class UcxReceiver {
 public:
  // `lost` is called when a transfer in progress has failed.
  UcxReceiver(ConnectionId connection, ucp_worker_h worker, TransportHandler* handler,
              TransportCounters* counters, absl::AnyInvocable<void(absl::Status)> lost);

  // Takes a piece inside UCX's active-message callback: tells the handler of a complete frame
  // and moves the payload to its landing. `data` is the payload itself or, for a rendezvous, its
  // descriptor. InvalidArgument when the piece is not the one that must come next.
  absl::Status Take(const PieceHeader& header, ByteSpan frame_part, void* data, bool rendezvous);

  // UCX writes to no landing any more.
  bool quiet() const { return transfers_.empty(); }
  // Fails the landings that are left. Only when quiet(), or when UCX's worker is gone.
  void Fail(const absl::Status& why);

 private:
  // A rendezvous on its way into its landing.
  struct Transfer {
    UcxReceiver* receiver;
    uint64_t bytes;
    LandingWriter writer;
    std::vector<ucp_dt_iov_t> pieces;
  };

  void StartTransfer(LandingWriter writer, void* descriptor, uint64_t bytes);
  static void OnReceived(void* request, ucs_status_t status, size_t length, void* transfer);
  void EndTransfer(Transfer* transfer, ucs_status_t status);

  const ConnectionId connection_;
  const ucp_worker_h worker_;
  TransportHandler* const handler_;
  TransportCounters* const counters_;
  absl::AnyInvocable<void(absl::Status)> lost_;

  InboundMessage inbound_;
  absl::flat_hash_map<Transfer*, std::unique_ptr<Transfer>> transfers_;
};

}  // namespace terrace
