// A node in the test's process, and workers' control streams to it.
#pragma once

#include <memory>
#include <string>

#include "cache_node/node.h"
#include "grpcpp/grpcpp.h"
#include "proto/control.grpc.pb.h"
#include "proto/frame.h"
#include "tests/cache_node/frame_client.h"

namespace terrace {

// Any free ports, little memory.
NodeOptions SmallNode();

// A session of the control plane; ends with this object.
class ControlSession {
 public:
  // Empty token: no credential.
  explicit ControlSession(std::shared_ptr<grpc::Channel> channel, const std::string& token = "");
  ~ControlSession() { End(); }

  // Whether the session was opened; `opened` holds what the node said.
  bool ok() const { return ok_; }
  grpc::Status status();  // of a stream that did not open, or has ended
  const control::v1::SessionOpened& opened() const { return event_.opened(); }
  SessionToken token() const;
  bool Next(control::v1::SessionEvent* event) { return reader_->Read(event); }
  void End();

  // Blocks of `block_bytes` in `segments`.
  grpc::Status OpenNamespace(const std::string& name, uint32_t block_bytes, uint32_t segments,
                             control::v1::OpenNamespaceReply* reply);

 private:
  std::string bearer_;
  std::unique_ptr<control::v1::Session::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<control::v1::SessionEvent>> reader_;
  control::v1::SessionEvent event_;
  bool ok_ = false;
  bool ended_ = false;
};

control::v1::Layout TestLayout(uint32_t block_bytes, uint32_t segments);
std::shared_ptr<grpc::Channel> PlainChannel(const std::string& address);
// Adds `authorization: Bearer TOKEN` and a deadline of twenty seconds.
void Prepare(grpc::ClientContext* context, const std::string& token);

}  // namespace terrace
