#include "tests/cache_node/node_fixture.h"

#include <algorithm>

namespace terrace {

NodeOptions SmallNode() {
  NodeOptions options;
  options.listen = options.data_listen = options.http_listen = "127.0.0.1:0";
  options.data_threads = 1;
  options.host_bytes = 64 << 20;
  options.max_block_bytes = 8 << 20;
  options.transport = "tcp";
  options.node_id = "test-node";
  return options;
}

void Prepare(grpc::ClientContext* context, const std::string& token) {
  if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
}

ControlSession::ControlSession(std::shared_ptr<grpc::Channel> channel, const std::string& token)
    : bearer_(token), stub_(control::v1::Session::NewStub(channel)) {
  if (!token.empty()) context_.AddMetadata("authorization", "Bearer " + token);
  control::v1::OpenRequest request;
  request.set_protocol_version(kFrameVersion);
  request.set_client_name("node test");
  reader_ = stub_->Open(&context_, request);
  ok_ = reader_->Read(&event_) && event_.has_opened();
}

grpc::Status ControlSession::status() {
  ended_ = true;
  return reader_->Finish();
}

SessionToken ControlSession::token() const {
  SessionToken token{};
  std::ranges::copy(opened().token(), token.begin());
  return token;
}

void ControlSession::End() {
  if (std::exchange(ended_, true)) return;
  context_.TryCancel();
  reader_->Finish();
}

grpc::Status ControlSession::OpenNamespace(const std::string& name, uint32_t block_bytes,
                                           uint32_t segments,
                                           control::v1::OpenNamespaceReply* reply) {
  control::v1::OpenNamespaceRequest request;
  request.set_name(name);
  *request.mutable_layout() = TestLayout(block_bytes, segments);
  request.mutable_hash_scheme()->set_algorithm("sha256");
  request.set_create(true);
  grpc::ClientContext context;
  Prepare(&context, bearer_);
  return stub_->OpenNamespace(&context, request, reply);
}

control::v1::Layout TestLayout(uint32_t block_bytes, uint32_t segments) {
  control::v1::Layout layout;
  layout.set_model("test-model");
  layout.set_kv_dtype("bf16");
  layout.set_format("layer-first NHD");
  layout.set_block_tokens(16);
  layout.set_layers(segments);
  layout.set_kv_heads(8);
  layout.set_head_dim(128);
  layout.set_shards(1);
  layout.set_block_bytes(block_bytes);
  layout.set_segments(segments);
  return layout;
}

std::shared_ptr<grpc::Channel> PlainChannel(const std::string& address) {
  return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
}

}  // namespace terrace
