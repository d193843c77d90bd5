// The caller of an RPC, and our status as gRPC's.
#pragma once

#include "absl/status/statusor.h"
#include "cache_node/security.h"
#include "grpcpp/grpcpp.h"

namespace terrace {

enum class Role { kAny, kWorker, kAdmin };

// The identity behind the call's `authorization: Bearer TOKEN`. Unauthenticated without a valid
// token where the node asks for one, PermissionDenied without the role.
absl::StatusOr<Identity> Authorize(const grpc::CallbackServerContext& context,
                                   const Security& security, Role role);

grpc::Status ToGrpc(const absl::Status& status);

}  // namespace terrace
