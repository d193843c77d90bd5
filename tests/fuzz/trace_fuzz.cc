// The trace reader of terrace-load: whatever it accepts reads the same once written out, and a
// limit cuts and does nothing else.
#include <algorithm>
#include <string>
#include <vector>

#include "client/load/traffic.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/require.h"

namespace terrace {
namespace {

// The requests up to the end or the first line that is none.
std::vector<TrafficRequest> ReadAll(const std::string& path, uint64_t limit, bool* whole) {
  absl::StatusOr<std::unique_ptr<Traffic>> traffic = OpenTrace(path, limit);
  Require(traffic.ok(), "a file that is there opens");
  std::vector<TrafficRequest> requests;
  while (true) {
    TrafficRequest request;
    const absl::StatusOr<bool> more = (*traffic)->Next(&request);
    *whole = more.ok();
    if (!more.ok()) {
      Require(more.status().code() == absl::StatusCode::kInvalidArgument, "says what is wrong");
    }
    if (!more.ok() || !*more) return requests;
    requests.push_back(std::move(request));
  }
}

bool Same(const std::vector<TrafficRequest>& a, const std::vector<TrafficRequest>& b) {
  return std::ranges::equal(a, b, {}, &TrafficRequest::hash_ids, &TrafficRequest::hash_ids);
}

}  // namespace
}  // namespace terrace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace terrace;
  static MemoryFile file;
  file.Assign(data, size);
  bool whole = false;
  std::vector<TrafficRequest> requests = ReadAll(file.path(), 0, &whole);

  std::string canonical;
  for (const TrafficRequest& request : requests) {
    canonical += fmt::format("{{\"hash_ids\":[{}]}}\n", fmt::join(request.hash_ids, ","));
  }
  static MemoryFile written;
  written.Assign(canonical.data(), canonical.size());
  Require(Same(ReadAll(written.path(), 0, &whole), requests) && whole, "reads as it was written");

  if (requests.empty()) return 0;
  requests.resize(requests.size() - 1);
  if (requests.empty()) return 0;  // a limit of 0 is none
  Require(Same(ReadAll(file.path(), requests.size(), &whole), requests) && whole, "a limit cuts");
  return 0;
}
