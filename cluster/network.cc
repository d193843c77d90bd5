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

constexpr char kAskedFor[] = "asked for";
constexpr char kDevices[] = "/sys/class/infiniband";

class TcpNetwork : public Network {
 public:
  TcpNetwork(std::string reason, bool fell_back)
      : reason_(std::move(reason)), fell_back_(fell_back) {}

  std::string name() const override { return "tcp"; }
  std::string reason() const override { return reason_; }
  bool fell_back() const override { return fell_back_; }
  std::string ucx_version() const override { return ""; }
  absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(NetworkTransportOptions options,
                                                           TransportHandler* handler) override {
    return CreateTcpTransport(
        {.thread_name = std::move(options.thread_name), .max_connections = options.max_connections},
        handler);
  }

 private:
  const std::string reason_;
  const bool fell_back_;
};

class RdmaNetwork : public Network {
 public:
  RdmaNetwork(std::unique_ptr<UcxContext> context, std::string reason)
      : context_(std::move(context)), reason_(std::move(reason)) {}

  std::string name() const override { return "rdma"; }
  std::string reason() const override { return reason_; }
  bool fell_back() const override { return false; }
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
  const std::string reason_;
};

// Starting UCX to find no device costs a tenth of a second; the kernel knows at once.
bool MayHaveRdmaDevice() {
  std::error_code none;
  const std::filesystem::directory_iterator devices(kDevices, none);
  return !none && devices != std::filesystem::directory_iterator();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> Network::Create(const std::string& transport) {
  if (transport != "auto" && transport != "tcp" && transport != "rdma") {
    return absl::InvalidArgumentError(
        fmt::format("transport '{}': auto, tcp and rdma are known", transport));
  }
  if (transport == "tcp") return std::make_unique<TcpNetwork>(kAskedFor, /*fell_back=*/false);
  if (transport == "auto" && !MayHaveRdmaDevice()) {
    return std::make_unique<TcpNetwork>(fmt::format("no RDMA device in {}", kDevices),
                                        /*fell_back=*/false);
  }
  auto context = UcxContext::Create();
  if (context.ok()) {
    return std::make_unique<RdmaNetwork>(
        *std::move(context), transport == "rdma" ? kAskedFor : "there is an RDMA device");
  }
  if (transport == "rdma") return context.status();
  return std::make_unique<TcpNetwork>(
      fmt::format("there is an RDMA device, and UCX cannot use it: {}",
                  std::string(context.status().message())),
      /*fell_back=*/true);
}

}  // namespace terrace
