#include "cluster/network.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cluster/tcp_transport.h"
#include "cluster/ucx_transport.h"
#include "fmt/format.h"
#include "proto/status.h"

namespace terrace {
namespace {

class TcpNetwork : public Network {
 public:
  std::string name() const override { return "tcp"; }
  std::string ucx_version() const override { return ""; }
  absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(NetworkTransportOptions options,
                                                           TransportHandler* handler) override {
    return CreateTcpTransport(
        {.thread_name = std::move(options.thread_name), .max_connections = options.max_connections},
        handler);
  }
};

class RdmaNetwork : public Network {
 public:
  explicit RdmaNetwork(std::unique_ptr<UcxContext> context) : context_(std::move(context)) {}

  std::string name() const override { return "rdma"; }
  std::string ucx_version() const override { return context_->version(); }
  absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(NetworkTransportOptions options,
                                                           TransportHandler* handler) override {
    return CreateUcxTransport(
        context_.get(),
        {.thread_name = std::move(options.thread_name), .max_connections = options.max_connections},
        handler);
  }

 private:
  const std::unique_ptr<UcxContext> context_;
};

// Starting UCX to find no device costs a tenth of a second; the kernel knows at once.
bool MayHaveRdmaDevice() {
  std::error_code none;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", none);
  return !none && devices != std::filesystem::directory_iterator();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> Network::Create(const std::string& transport) {
  if (transport != "auto" && transport != "tcp" && transport != "rdma") {
    return absl::InvalidArgumentError(
        fmt::format("transport '{}': auto, tcp and rdma are known", transport));
  }
  if (transport == "rdma" || (transport == "auto" && MayHaveRdmaDevice())) {
    auto context = UcxContext::Create();
    if (context.ok()) return std::make_unique<RdmaNetwork>(*std::move(context));
    if (transport == "rdma") return context.status();
  }
  return std::make_unique<TcpNetwork>();
}

}  // namespace terrace
