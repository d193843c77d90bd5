// Metrics and health over HTTP, for Prometheus, load balancers and people. Read only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cache_node/address.h"
#include "proto/metrics.h"

namespace terrace {

struct HttpSources {
  const MetricRegistry* registry = nullptr;  // outlives the service
  // "starting", "ready" or "stopping"; thread-safe.
  std::function<std::string()> state;
};

// GET /metrics (text format 0.0.4), /healthz (200 while the process runs), /readyz (200 when
// ready, else 503 with the state).
class HttpService {
 public:
  // Unavailable when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpService>> Start(const HostPort& address,
                                                            HttpSources sources);
  virtual ~HttpService() = default;  // stops; requests in progress are finished

  virtual uint16_t port() const = 0;
};

}  // namespace terrace
