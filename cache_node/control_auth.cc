#include "cache_node/control_auth.h"

#include <string_view>

namespace terrace {
namespace {

constexpr std::string_view kScheme = "Bearer ";

std::string_view BearerToken(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  auto it = metadata.find("authorization");
  if (it == metadata.end()) return {};
  const std::string_view value(it->second.data(), it->second.size());
  return value.starts_with(kScheme) ? value.substr(kScheme.size()) : std::string_view();
}

}  // namespace

absl::StatusOr<Identity> Authorize(const grpc::CallbackServerContext& context,
                                   const Security& security, Role role) {
  Identity identity{std::string(kOpenTenant), true, true};
  if (security.credentials) {
    std::optional<Identity> found = security.credentials->Find(BearerToken(context));
    if (!found) {
      return absl::UnauthenticatedError(
          "expected 'authorization: Bearer TOKEN' with a token of the node's credentials file");
    }
    identity = *std::move(found);
  }
  if (role == Role::kWorker && !identity.worker) {
    return absl::PermissionDeniedError("needs the role 'worker'");
  }
  if (role == Role::kAdmin && !identity.admin) {
    return absl::PermissionDeniedError("needs the role 'admin'");
  }
  return identity;
}

grpc::Status ToGrpc(const absl::Status& status) {
  // The two enumerations have the same values by design.
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

}  // namespace terrace
