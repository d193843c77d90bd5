// A peer that speaks UCX but not the transport's protocol: sends whatever a test wants.
#pragma once

#include <string>

#include "cluster/socket_address.h"
#include "cluster/ucx_handles.h"
#include "proto/bytes.h"

namespace terrace {

class RawUcxPeer {
 public:
  explicit RawUcxPeer(const std::string& address);
  ~RawUcxPeer();

  bool failed() const { return failed_; }  // the other side has closed
  // Sends one active message and waits until UCX has taken it or the connection has failed.
  void Send(unsigned id, ByteSpan header, ByteSpan data, uint32_t flags);
  // Turns the wheel until the other side closes; false when it has not after 20 seconds.
  bool WaitFailed();

 private:
  void Progress() { ucp_worker_progress(worker_.get()); }

  SocketAddress address_;
  UcxContextHandle context_;
  UcxWorker worker_;
  ucp_ep_h endpoint_ = nullptr;
  bool failed_ = false;
};

}  // namespace terrace
