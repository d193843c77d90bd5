#include "cache_node/http_service.h"

#include <sys/socket.h>

#include <thread>

#include "fmt/format.h"
#include "httplib.h"
#include "proto/clock.h"

namespace terrace {
namespace {

constexpr size_t kThreads = 8;          // a slow reader holds one
constexpr size_t kMaxBodyBytes = 1024;  // nobody has anything to send
constexpr time_t kPatienceSeconds = 2;
constexpr char kTextFormat[] = "text/plain; version=0.0.4; charset=utf-8";

class HttpServiceImpl final : public HttpService {
 public:
  explicit HttpServiceImpl(HttpSources sources) : sources_(std::move(sources)) {}
  ~HttpServiceImpl() override {
    if (!thread_.joinable()) return;
    server_.stop();
    thread_.join();
  }

  absl::Status Listen(const HostPort& address) {
    Configure();
    port_ = address.port == 0 ? server_.bind_to_any_port(address.host)
            : server_.bind_to_port(address.host, address.port) ? address.port
                                                               : -1;
    if (port_ <= 0) {
      return absl::UnavailableError(
          fmt::format("{}: cannot be bound", JoinHostPort(address.host, address.port)));
    }
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // stop() is heard only by a server that runs.
    const absl::Duration until = Clock::Real()->Now() + absl::Seconds(kPatienceSeconds);
    while (!server_.is_running()) {
      if (Clock::Real()->Now() > until) return absl::UnavailableError("the listener ended at once");
      std::this_thread::yield();
    }
    return absl::OkStatus();
  }

  uint16_t port() const override { return static_cast<uint16_t>(port_); }

 private:
  void Configure() {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server_.set_payload_max_length(kMaxBodyBytes);
    server_.set_read_timeout(kPatienceSeconds);
    server_.set_write_timeout(kPatienceSeconds);
    server_.set_keep_alive_timeout(kPatienceSeconds);
    // The library's default shares the port with whoever asks for it, too.
    server_.set_socket_options([](socket_t fd) {
      const int yes = 1;
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(sources_.registry->ExposeText(), kTextFormat);
    });
    server_.Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("ok\n", "text/plain");
    });
    server_.Get("/readyz", [this](const httplib::Request&, httplib::Response& response) {
      const std::string state = sources_.state();
      response.status = state == "ready" ? 200 : 503;
      response.set_content(state + "\n", "text/plain");
    });
  }

  const HttpSources sources_;
  httplib::Server server_;
  int port_ = -1;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpService>> HttpService::Start(const HostPort& address,
                                                                HttpSources sources) {
  auto service = std::make_unique<HttpServiceImpl>(std::move(sources));
  if (absl::Status listening = service->Listen(address); !listening.ok()) return listening;
  return service;
}

}  // namespace terrace
