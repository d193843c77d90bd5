#include "cache_node/control_server.h"

#include <chrono>

#include "cache_node/address.h"
#include "cache_node/admin_service.h"
#include "cache_node/session_service.h"
#include "fmt/format.h"
#include "grpc/grpc.h"
#include "grpc/support/log.h"
#include "grpcpp/ext/health_check_service_server_builder_option.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "proto/log.h"

namespace terrace {
namespace {

// The largest request is a namespace's definition: 32 extra fields of 256 bytes and their like.
constexpr int kMaxRequestBytes = 64 << 10;
constexpr int kMaxStreamsPerConnection = 64;
constexpr size_t kMemoryQuotaBytes = 64 << 20;
// A client that is frozen or cut off is noticed after one interval and one timeout.
constexpr int kKeepaliveMs = 1000;
constexpr int kClientPingIntervalMs = 500;

// gRPC's own complaints: what matters of them comes back to us as a status.
void LogGrpc(gpr_log_func_args* args) { Log(LogLevel::kDebug, "grpc", "{}", args->message); }

std::shared_ptr<grpc::ServerCredentials> MakeCredentials(const Security& security) {
  if (security.certificate.empty()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      security.client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                 : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = security.client_ca;
  options.pem_key_cert_pairs.push_back({security.key, security.certificate});
  return grpc::SslServerCredentials(options);
}

class ControlServerImpl final : public ControlServer {
 public:
  explicit ControlServerImpl(ControlPlane plane) : plane_(std::move(plane)) {}

  absl::Status Listen(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, MakeCredentials(*plane_.security), &port_);
    builder.RegisterService(&sessions_);
    builder.RegisterService(&admin_);
    builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
    builder.SetResourceQuota(grpc::ResourceQuota("control").Resize(kMemoryQuotaBytes));
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kClientPingIntervalMs);
    server_ = builder.BuildAndStart();
    if (server_ != nullptr && port_ != 0) return absl::OkStatus();
    if (!plane_.security->certificate.empty()) {
      return absl::InvalidArgumentError(fmt::format(
          "cannot serve on {}: the port is in use, or certificate and key do not fit", address));
    }
    return absl::UnavailableError(fmt::format("cannot serve on {}: the port is in use", address));
  }

  uint16_t port() const override { return static_cast<uint16_t>(port_); }
  void Beat() override { sessions_.Beat(); }
  void Goaway(const std::string& reason) override {
    if (auto* health = server_->GetHealthCheckService()) health->SetServingStatus(false);
    sessions_.Goaway(reason);
  }
  void Shutdown(absl::Duration timeout) override {
    sessions_.FinishAll();
    server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  }

 private:
  const ControlPlane plane_;
  SessionService sessions_{plane_};
  AdminService admin_{plane_};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(const std::string& address,
                                                                    ControlPlane plane) {
  gpr_set_log_function(&LogGrpc);
  grpc::EnableDefaultHealthCheckService(true);
  auto server = std::make_unique<ControlServerImpl>(std::move(plane));
  if (absl::Status listening = server->Listen(address); !listening.ok()) return listening;
  return server;
}

}  // namespace terrace
