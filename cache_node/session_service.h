// The gRPC service of workers: sessions as streams, namespaces.
#pragma once

#include <string>

#include "absl/container/flat_hash_set.h"
#include "cache_node/control_server.h"
#include "grpcpp/grpcpp.h"
#include "proto/control.grpc.pb.h"
#include "proto/mutex.h"

namespace terrace {

class SessionService final : public control::v1::Session::CallbackService {
 public:
  explicit SessionService(const ControlPlane& plane) : plane_(plane) {}

  grpc::ServerWriteReactor<control::v1::SessionEvent>* Open(
      grpc::CallbackServerContext* context, const control::v1::OpenRequest* request) override;
  grpc::ServerUnaryReactor* OpenNamespace(grpc::CallbackServerContext* context,
                                          const control::v1::OpenNamespaceRequest* request,
                                          control::v1::OpenNamespaceReply* reply) override;

  void Beat();
  void Goaway(const std::string& reason);
  // Ends every stream.
  void FinishAll();

 private:
  class Stream;

  absl::StatusOr<OpenedSession> OpenSession(const grpc::CallbackServerContext& context,
                                            const control::v1::OpenRequest& request);
  void Remove(Stream* stream);

  const ControlPlane& plane_;
  Mutex mutex_;  // held while a stream is called, so that it cannot go meanwhile
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
