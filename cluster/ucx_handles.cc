#include "cluster/ucx_handles.h"

#include <cstdio>
#include <cstdlib>
#include <set>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "fmt/format.h"

namespace terrace {

absl::Status FromUcx(ucs_status_t status, const std::string& what) {
  if (status == UCS_OK) return absl::OkStatus();
  const std::string message = fmt::format("{}: {}", what, ucs_status_string(status));
  switch (status) {
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
      return absl::InvalidArgumentError(message);
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
      return absl::ResourceExhaustedError(message);
    case UCS_ERR_TIMED_OUT:
      return absl::DeadlineExceededError(message);
    default:
      return absl::UnavailableError(message);
  }
}

// UCX 1.13 tells the lanes only as text for people, one line each:
// "#  lane[1]:  2:tcp/lo.0 md[0]  -> md[0]/tcp/sysdev[255] am am_bw#0".
std::string DescribeLanes(ucp_ep_h endpoint) {
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = open_memstream(&text, &size);
  if (stream == nullptr) return "";
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  const std::unique_ptr<char, decltype(&std::free)> owned(text, &std::free);
  std::set<std::string> lanes;
  for (const auto line : absl::StrSplit(owned.get(), '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    // The connection manager's lane has no device.
    if (words.size() < 3 || words[1].rfind("lane[", 0) != 0) continue;
    const size_t begin = words[2].find(':');
    const size_t slash = words[2].find('/');
    if (begin == std::string::npos || slash == std::string::npos) continue;
    lanes.insert(words[2].substr(begin + 1, words[2].rfind('.') - begin - 1));
  }
  return absl::StrJoin(lanes, " ");
}

}  // namespace terrace
