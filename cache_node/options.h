// What a node is told at start: flags or a TOML file with the same names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/block.h"

namespace terrace {

// Bounds on what clients may hold. Those with a flag are marked.
struct NodeLimits {
  uint64_t max_sessions = 256;                   // --max-sessions
  uint64_t max_connections = 1024;               // --max-connections, per data thread
  uint64_t max_namespaces = 1024;                // --max-namespaces
  uint64_t max_leases = 256;                     // --max-leases, per session
  absl::Duration max_lease = absl::Seconds(30);  // --max-lease

  uint64_t max_leased_bytes = 1ULL << 40;  // of all sessions; the node's: half of the host tier
  uint32_t max_connections_per_session = 64;
  uint32_t max_requests_in_flight = 64;       // Get frames not yet answered, per connection
  uint32_t max_reservations = 4096;           // per session
  uint64_t max_bytes_in_flight = 1ULL << 30;  // reserved and not yet published, per connection
};

struct NodeOptions {
  std::string listen = "127.0.0.1:7470";
  std::string data_listen = "127.0.0.1:0";
  std::string http_listen = "127.0.0.1:7480";
  std::string local_listen = "auto";  // or "off", or an address (cluster/local_socket.h)
  std::string advertise;              // host for data and control addresses; empty: as bound
  uint64_t data_threads = 2;          // default: min(2, cores)
  uint64_t host_bytes = 1ULL << 30;
  std::vector<std::string> ssd;   // PATH[:BYTES] each (cache_node/ssd_folders.h)
  uint64_t ssd_write_budget = 0;  // bytes per day; 0: no bound
  uint64_t ssd_write_rate = 0;    // bytes per second; 0: no bound
  absl::Duration ssd_max_age;     // zero: for ever
  uint64_t ssd_endurance = 0;     // bytes that each device is rated for; 0: not told
  uint64_t max_block_bytes = kMaxBlockBytes;
  std::string transport = "auto";
  std::string node_id;  // default: the host's name
  std::string tls_cert, tls_key, tls_ca;
  std::string credentials;
  absl::Duration stop_timeout = absl::Seconds(5);
  std::string log_level = "info";
  NodeLimits limits;

  NodeOptions();
  // InvalidArgument names the flag, what is wrong, and the mend. Reads no file.
  absl::Status Validate() const;
  // Whether strangers are kept out: the condition for leaving the loopback interface.
  bool secured() const { return !credentials.empty() && !tls_cert.empty(); }
};

struct CommandLine {
  NodeOptions options;
  bool check_config = false;
  std::string supervisor = "on";
};

// Nothing when the program should go on; otherwise its exit code (see proto/flags.h). Options
// are parsed, not yet validated.
std::optional<int> ParseCommandLine(int argc, const char* const* argv, CommandLine* out);

struct MemoryBudgetItem {
  std::string name;
  uint64_t bytes = 0;
};

// What the node will use with these options, item by item; the first is the tier itself.
std::vector<MemoryBudgetItem> MemoryBudget(const NodeOptions& options);

}  // namespace terrace
