#include "cache_node/options.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "cache_node/address.h"
#include "cache_node/ssd_folders.h"
#include "cluster/local_socket.h"
#include "fmt/format.h"
#include "proto/flags.h"
#include "proto/log.h"
#include "proto/status.h"

namespace terrace {
namespace {

// Estimates for the sum printed at start; measured ones are in the metrics.
constexpr uint64_t kIndexBytesPerBlock = 512;
constexpr uint64_t kTypicalBlockBytes = 64 << 10;
constexpr uint64_t kSsdBytesPerFolder = 64 << 20;
constexpr uint64_t kColdBytesPerBlock = 48;
constexpr uint64_t kTransportBytesPerThread = 16 * (8ULL << 20);

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "node";
}

absl::Status Invalid(std::string_view flag, const std::string& what) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", flag, what));
}

absl::Status ValidateListener(const NodeOptions& options, const char* flag,
                              const std::string& text) {
  absl::StatusOr<HostPort> address = ParseHostPort(text);
  if (!address.ok()) return Invalid(flag, std::string(address.status().message()));
  if (options.secured() || IsLoopback(address->host)) return absl::OkStatus();
  return Invalid(flag, fmt::format("{} is not a loopback address, and this node keeps no "
                                   "stranger out; listen on 127.0.0.1, or give --credentials with "
                                   "--tls-cert and --tls-key",
                                   text));
}

absl::Status ValidateDataAddresses(const NodeOptions& options) {
  const HostPort data = *ParseHostPort(options.data_listen);
  if (options.transport == "rdma" && IsLoopback(data.host) &&
      data.host.find(':') != std::string::npos) {
    return Invalid("--data-listen", "UCX carries nothing over [::1]; on one machine use 127.0.0.1");
  }
  if (data.port != 0 && data.port + options.data_threads - 1 > 65535) {
    return Invalid("--data-listen",
                   fmt::format("{} threads from port {} on need ports beyond 65535",
                               options.data_threads, data.port));
  }
  if (IsWildcard(data.host) && options.advertise.empty()) {
    return Invalid("--advertise", fmt::format("needed, since --data-listen {} is no address that "
                                              "a client can connect to",
                                              options.data_listen));
  }
  if (IsWildcard(options.advertise) ||
      options.advertise.find_first_of("[]/ ") != std::string::npos) {
    return Invalid("--advertise", fmt::format("'{}' is no host that a client can connect to: give "
                                              "a name or an IP without port",
                                              options.advertise));
  }
  return absl::OkStatus();
}

absl::Status ValidateLocalListener(const std::string& address) {
  if (address == "auto" || address == "off") return absl::OkStatus();
  const absl::Status valid = CheckLocalAddress(address);
  if (valid.ok()) return valid;
  return Invalid("--local-listen",
                 fmt::format("{}; or auto, or off", std::string(valid.message())));
}

absl::Status ValidateSecurity(const NodeOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return Invalid(options.tls_cert.empty() ? "--tls-cert" : "--tls-key",
                   "missing: certificate and key belong together");
  }
  if (!options.tls_ca.empty() && options.tls_cert.empty()) {
    return Invalid("--tls-ca", "client certificates need --tls-cert and --tls-key, too");
  }
  return absl::OkStatus();
}

// A node that was meant to have an ssd tier must not run without one unnoticed.
absl::Status ValidateSsdKnobs(const NodeOptions& options) {
  if (!options.ssd.empty()) return absl::OkStatus();
  const std::pair<const char*, bool> knobs[] = {
      {"--ssd-write-budget", options.ssd_write_budget != 0},
      {"--ssd-write-rate", options.ssd_write_rate != 0},
      {"--ssd-endurance", options.ssd_endurance != 0},
      {"--ssd-max-age", options.ssd_max_age != absl::ZeroDuration()}};
  for (const auto& [flag, given] : knobs) {
    if (given) {
      return Invalid(flag,
                     "has no effect without --ssd; name a folder with --ssd, or leave it out");
    }
  }
  return absl::OkStatus();
}

void AddFlags(Flags* flags, CommandLine* line) {
  NodeOptions& o = line->options;
  NodeLimits& limits = o.limits;
  flags->AddString("--listen", &o.listen, "control plane (gRPC), IP:PORT; port 0: any");
  flags->AddString("--data-listen", &o.data_listen,
                   "data plane, IP:PORT; thread i takes PORT+i; port 0: any");
  flags->AddString("--http-listen", &o.http_listen, "metrics and health, IP:PORT; port 0: any");
  flags->AddString("--local-listen", &o.local_listen,
                   "unix socket that shares the host tier's memory with clients on this machine: a "
                   "path (mount its folder into containers), @NAME, auto or off");
  flags->AddString("--advertise", &o.advertise,
                   "host that clients connect to, where --data-listen is on all interfaces");
  flags->AddUint("--data-threads", &o.data_threads, "threads of the data plane", 1, 64);
  flags->AddBytes("--host-bytes", &o.host_bytes, "memory of the host tier");
  flags->AddStrings("--ssd", &o.ssd,
                    "folder of the ssd tier, PATH[:BYTES]; several times for several devices; "
                    "without BYTES: four fifths of the device");
  flags->AddBytes(
      "--ssd-write-budget", &o.ssd_write_budget,
      "bytes per day that may be written to the ssd tier, 1/24 of it in one burst, which "
      "each start has anew; 0: no bound");
  flags->AddBytes("--ssd-write-rate", &o.ssd_write_rate,
                  "bytes per second that leave host memory for the ssd tier, at most; what must "
                  "leave sooner is not written; a stop does not keep to it; 0: no bound");
  flags->AddBytes("--ssd-endurance", &o.ssd_endurance,
                  "bytes that a device may be written in its life, as its maker says; gives the "
                  "metric terrace_ssd_projected_life_seconds");
  flags->AddDuration("--ssd-max-age", &o.ssd_max_age,
                     "blocks leave the ssd tier this long after they were written; 0s: never");
  flags->AddBytes("--max-block-bytes", &o.max_block_bytes, "largest block that is accepted");
  flags->AddChoice("--transport", &o.transport, "how bytes travel; auto: rdma where there is any",
                   {"auto", "tcp", "rdma"});
  flags->AddString("--node-id", &o.node_id, "name of this node");
  flags->AddString("--tls-cert", &o.tls_cert, "PEM file: the node's certificate chain");
  flags->AddString("--tls-key", &o.tls_key, "PEM file: its private key");
  flags->AddString("--tls-ca", &o.tls_ca, "PEM file: clients must show a certificate of this CA");
  flags->AddString("--credentials", &o.credentials,
                   "file of lines 'TENANT ROLE[,ROLE] TOKEN'; roles: worker, admin");
  flags->AddUint("--max-sessions", &limits.max_sessions, "sessions at a time", 1, 1 << 16);
  flags->AddUint("--max-connections", &limits.max_connections,
                 "data connections at a time, per data thread", 1, 1 << 16);
  flags->AddUint("--max-namespaces", &limits.max_namespaces, "namespaces of all tenants", 1,
                 1 << 20);
  flags->AddUint("--max-leases", &limits.max_leases, "leases held by one session", 1, 1 << 16);
  flags->AddDuration("--max-lease", &limits.max_lease, "longest time that a lease may be held");
  flags->AddDuration(
      "--stop-timeout", &o.stop_timeout,
      "time to finish what is in flight after SIGTERM; an ssd tier gets what is left "
      "of it to write host memory to, and half of it at least, so that a stop takes "
      "up to 1.5 times as long and a second");
  flags->AddChoice("--supervisor", &line->supervisor,
                   "on: a second process keeps the host tier's memory and the ports, and starts "
                   "the serving one again when it dies, with its blocks; off: a crash ends all",
                   {"on", "off"});
  flags->AddChoice("--log-level", &o.log_level, "what is logged to standard error",
                   {"debug", "info", "warning", "error"});
  flags->AddBool("--check-config", &line->check_config,
                 "print what would run and exit: 0, or 2 when the configuration or a folder of the "
                 "ssd tier is wrong; what is not to be had at the moment (memory, a folder that a "
                 "running node uses) is a warning");
}

}  // namespace

NodeOptions::NodeOptions()
    : data_threads(std::clamp(std::thread::hardware_concurrency(), 1U, 2U)), node_id(HostName()) {}

absl::Status NodeOptions::Validate() const {
  TERRACE_RETURN_IF_ERROR(ValidateSecurity(*this));
  TERRACE_RETURN_IF_ERROR(ValidateListener(*this, "--listen", listen));
  TERRACE_RETURN_IF_ERROR(ValidateListener(*this, "--data-listen", data_listen));
  TERRACE_RETURN_IF_ERROR(ValidateListener(*this, "--http-listen", http_listen));
  TERRACE_RETURN_IF_ERROR(ValidateDataAddresses(*this));
  TERRACE_RETURN_IF_ERROR(ValidateLocalListener(local_listen));
  if (max_block_bytes < kMinBlockBytes || max_block_bytes > kMaxBlockBytes) {
    return Invalid("--max-block-bytes",
                   fmt::format("{} is outside 4KiB to 64MiB", max_block_bytes));
  }
  if (host_bytes < max_block_bytes) {
    return Invalid("--host-bytes", fmt::format("{} bytes cannot hold one block of "
                                               "--max-block-bytes ({})",
                                               host_bytes, max_block_bytes));
  }
  if (auto folders = ParseSsdFolders(ssd); !folders.ok()) {
    return Invalid("--ssd", std::string(folders.status().message()));
  }
  TERRACE_RETURN_IF_ERROR(ValidateSsdKnobs(*this));
  if (ssd_max_age < absl::ZeroDuration() || ssd_max_age > absl::Hours(24 * 365 * 10)) {
    return Invalid("--ssd-max-age", "expected 0s to ten years");
  }
  if (node_id.empty() || node_id.size() > 255 ||
      !std::ranges::all_of(node_id, [](char c) { return c > ' ' && c < 127 && c != '"'; })) {
    return Invalid("--node-id", "expected 1 to 255 printable characters without spaces");
  }
  if (limits.max_lease < absl::Milliseconds(1) || limits.max_lease > absl::Hours(1)) {
    return Invalid("--max-lease", "expected 1ms to 1h");
  }
  if (stop_timeout > absl::Minutes(10)) return Invalid("--stop-timeout", "expected at most 10m");
  return absl::OkStatus();
}

std::optional<int> ParseCommandLine(int argc, const char* const* argv, CommandLine* out) {
  Flags flags("terraced", "A node of the Terrace KV cache: holds blocks, serves them to workers.");
  AddFlags(&flags, out);
  flags.AddConfigFile();
  flags.Footer(
      "Sizes: 4096, 64KiB, 1.5GiB. Times: 250ms, 5s. SIGTERM stops gracefully, a second one at "
      "once.\nExample: terraced --host-bytes 8GiB --credentials tenants --tls-cert node.pem "
      "--tls-key node.key --listen 10.0.0.5:7470 --data-listen 10.0.0.5:7500");
  return flags.Parse(argc, argv);
}

std::vector<MemoryBudgetItem> MemoryBudget(const NodeOptions& options) {
  const uint64_t blocks = options.host_bytes / kTypicalBlockBytes;
  std::vector<MemoryBudgetItem> items = {
      {"host tier (blocks, and puts as they arrive)", options.host_bytes},
      {"index (estimate for 64 KiB blocks)", blocks * kIndexBytesPerBlock},
      {"transport (estimate for 16 busy connections per data thread)",
       options.data_threads * kTransportBytesPerThread}};
  const absl::StatusOr<std::vector<SsdFolder>> folders = ParseSsdFolders(options.ssd);
  if (!folders.ok() || folders->empty()) return items;
  uint64_t cold_blocks = 0;
  for (const SsdFolder& folder : *folders) {
    const uint64_t bytes =
        folder.bytes != 0 ? folder.bytes : DefaultSsdBytes(folder.path).value_or(0);
    cold_blocks += bytes / kTypicalBlockBytes;
  }
  items.push_back({"ssd tier (estimate for 64 KiB blocks)",
                   folders->size() * kSsdBytesPerFolder + cold_blocks * kColdBytesPerBlock});
  return items;
}

}  // namespace terrace
