#include "cache_node/data_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

namespace terrace {
namespace {

constexpr const char* kFrameNames[] = {
    "hello",   "hello_reply",   "match",   "match_reply", "get",   "block",
    "reserve", "reserve_reply", "value",   "put_reply",   "touch", "release",
    "cancel",  "put",           "persist", "lend",        "lent",  "landed"};
static_assert(std::size(kFrameNames) == std::variant_size_v<FrameBody>);
constexpr const char* kKindNames[] = {"match", "get", "reserve", "put", "persist"};
static_assert(std::size(kKindNames) == kRequestKinds);

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

}  // namespace

DataMetrics::DataMetrics(MetricRegistry* registry)
    : bytes_out(registry->AddCounter("terrace_block_bytes_total", "Bytes of blocks moved",
                                     {{"direction", "out"}})),
      bytes_lent(registry->AddCounter("terrace_block_bytes_total", "Bytes of blocks moved",
                                      {{"direction", "lent"}})),
      bytes_in(registry->AddCounter("terrace_block_bytes_total", "Bytes of blocks moved",
                                    {{"direction", "in"}})),
      malformed(registry->AddCounter("terrace_frames_malformed_total",
                                     "Frames that could not be read; each closed its connection")),
      checksum_mismatch(registry->AddCounter("terrace_checksum_mismatches_total",
                                             "Puts whose bytes failed their checksum")),
      overdue(registry->AddCounter("terrace_connections_overdue_total",
                                   "Connections closed since the peer stopped in mid-transfer")),
      hello_failed(registry->AddCounter("terrace_hello_failed_total",
                                        "Data connections without a valid token")),
      expired(registry->AddCounter("terrace_gets_expired_total",
                                   "Blocks not sent since the request's deadline had passed")),
      reservations_expired(registry->AddCounter("terrace_reservations_expired_total",
                                                "Reservations given back unused")) {
  for (size_t i = 0; i < kFrameTypes; ++i) {
    frames_[i] =
        registry->AddCounter("terrace_frames_total", "Frames received", {{"type", kFrameNames[i]}});
  }
  for (size_t kind = 0; kind < outcomes_.size(); ++kind) {
    for (size_t status = 0; status < kStatuses; ++status) {
      outcomes_[kind][status] = registry->AddCounter(
          "terrace_outcomes_total", "Outcomes per block; of match, per request",
          {{"request", kKindNames[kind]}, {"status", ToString(static_cast<WireStatus>(status))}});
    }
  }
}

uint64_t ResidentMemoryBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void AddProcessMetrics(MetricRegistry* registry) {
  registry->AddCollector([](std::vector<MetricSample>* out) {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    out->push_back({"process_cpu_seconds_total",
                    "User and system CPU time",
                    true,
                    {},
                    Seconds(usage.ru_utime) + Seconds(usage.ru_stime)});
    out->push_back({"process_resident_memory_bytes",
                    "Resident memory",
                    false,
                    {},
                    static_cast<double>(ResidentMemoryBytes())});
  });
}

}  // namespace terrace
