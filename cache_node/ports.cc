#include "cache_node/ports.h"

#include <string>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "proto/status.h"

namespace terrace {
namespace {

absl::Status Hold(std::string_view flag, HostPort* address, std::vector<Descriptor>* held) {
  absl::StatusOr<Descriptor> port = HoldPort(address);
  if (!port.ok()) {
    return absl::UnavailableError(fmt::format(
        "{}: {}: {}; stop who uses it or choose another port (0: any free one)", flag,
        JoinHostPort(address->host, address->port), std::string(port.status().message())));
  }
  held->push_back(*std::move(port));
  return absl::OkStatus();
}

}  // namespace

HostPort DataAddress(const NodeOptions& options, size_t i) {
  HostPort address = *ParseHostPort(options.data_listen);
  if (address.port != 0) address.port = static_cast<uint16_t>(address.port + i);
  return address;
}

absl::StatusOr<std::vector<Descriptor>> HoldPorts(NodeOptions* options) {
  std::vector<Descriptor> held;
  const std::pair<const char*, std::string*> listeners[] = {
      {"--listen", &options->listen}, {"--http-listen", &options->http_listen}};
  for (const auto& [flag, text] : listeners) {
    HostPort address = *ParseHostPort(*text);
    TERRACE_RETURN_IF_ERROR(Hold(flag, &address, &held));
    *text = JoinHostPort(address.host, address.port);
  }
  for (size_t i = 0; i < options->data_threads; ++i) {
    HostPort address = DataAddress(*options, i);
    if (address.port != 0) TERRACE_RETURN_IF_ERROR(Hold("--data-listen", &address, &held));
  }
  return held;
}

}  // namespace terrace
