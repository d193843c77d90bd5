// The gRPC service of operators. A worker sees its own tenant's part of the node, an admin all.
#pragma once

#include "cache_node/control_server.h"
#include "grpcpp/grpcpp.h"
#include "proto/control.grpc.pb.h"

namespace terrace {

class AdminService final : public control::v1::Admin::CallbackService {
 public:
  explicit AdminService(const ControlPlane& plane) : plane_(plane) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const control::v1::GetStatusRequest* request,
                                      control::v1::NodeStatus* reply) override;
  grpc::ServerUnaryReactor* GetTiers(grpc::CallbackServerContext* context,
                                     const control::v1::GetTiersRequest* request,
                                     control::v1::GetTiersReply* reply) override;
  grpc::ServerUnaryReactor* GetTop(grpc::CallbackServerContext* context,
                                   const control::v1::GetTopRequest* request,
                                   control::v1::GetTopReply* reply) override;
  grpc::ServerUnaryReactor* Locate(grpc::CallbackServerContext* context,
                                   const control::v1::LocateRequest* request,
                                   control::v1::LocateReply* reply) override;
  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* context,
                                     const control::v1::GetStatsRequest* request,
                                     control::v1::GetStatsReply* reply) override;
  grpc::ServerUnaryReactor* ListNamespaces(grpc::CallbackServerContext* context,
                                           const control::v1::ListNamespacesRequest* request,
                                           control::v1::ListNamespacesReply* reply) override;
  grpc::ServerUnaryReactor* CreateNamespace(grpc::CallbackServerContext* context,
                                            const control::v1::CreateNamespaceRequest* request,
                                            control::v1::NamespaceInfo* reply) override;
  grpc::ServerWriteReactor<control::v1::DeleteNamespaceProgress>* DeleteNamespace(
      grpc::CallbackServerContext* context,
      const control::v1::DeleteNamespaceRequest* request) override;
  grpc::ServerWriteReactor<control::v1::ScrubReply>* Scrub(
      grpc::CallbackServerContext* context, const control::v1::ScrubRequest* request) override;

 private:
  static void Describe(const OpenedNamespace& ns, const NamespaceUsage& usage,
                       control::v1::NamespaceInfo* out);
  // Whether `identity` may see blocks of that namespace.
  bool Sees(const Identity& identity, NamespaceId ns) const;

  const ControlPlane& plane_;
};

}  // namespace terrace
