// A node's config file, through the entry point of terraced: no exception gets out, the same file
// says the same twice, and what Validate() accepts is within its bounds.
#include <cstdio>
#include <iostream>
#include <string>

#include "cache_node/options.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/require.h"

namespace terrace {
namespace {

// Help and complaints would drown the fuzzer's own words, which go to the stream that standard
// error was when it started.
bool Hush() {
  stderr = std::fopen("/dev/null", "w");
  std::cout.rdbuf(nullptr);
  return true;
}

std::optional<int> Read(const std::string& path, CommandLine* line) {
  const char* argv[] = {"terraced", "--config", path.c_str()};
  return ParseCommandLine(3, argv, line);
}

void Judge(const NodeOptions& options) {
  Require(options.max_block_bytes >= kMinBlockBytes && options.max_block_bytes <= kMaxBlockBytes,
          "a block within its bounds");
  Require(options.host_bytes >= options.max_block_bytes, "a tier holds a block");
  Require(options.limits.max_lease <= absl::Hours(1) &&
              options.stop_timeout >= absl::ZeroDuration() &&
              options.stop_timeout <= absl::Minutes(10),
          "times within their bounds");
  Require(options.data_threads >= 1 && options.data_threads <= 64, "threads within their bounds");
  Require(options.tls_cert.empty() == options.tls_key.empty(), "certificate and key together");
  uint64_t sum = 0;
  for (const MemoryBudgetItem& item : MemoryBudget(options)) {
    Require(sum + item.bytes >= sum, "the sum of memory does not wrap");
    sum += item.bytes;
  }
}

}  // namespace
}  // namespace terrace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace terrace;
  [[maybe_unused]] static const bool hushed = Hush();
  static MemoryFile file;
  file.Assign(data, size);
  CommandLine line, again;
  const std::optional<int> code = Read(file.path(), &line);
  Require(!code || *code == 0 || *code == 2, "an exit code that is documented");
  Require(Read(file.path(), &again) == code, "the same file, the same answer");
  if (code) return 0;
  const absl::Status status = line.options.Validate();
  Require(status == again.options.Validate(), "the same file, the same options");
  if (status.ok()) {
    Judge(line.options);
  } else {
    Require(status.message().substr(0, 2) == "--", "an error names its flag");
  }
  return 0;
}
