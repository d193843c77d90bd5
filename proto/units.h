// Sizes and durations as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace terrace {

// "4096", "64KiB", "1.5GiB", "2TiB" (binary units only; B may be written, case is ignored).
// InvalidArgument for anything else, a fraction of a byte, or more than 2^63 - 1.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);
// "64.0 KiB": three significant figures at least, for people.
std::string FormatBytes(uint64_t bytes);

// "250ms", "1.5s", "2h45m" (absl::ParseDuration); InvalidArgument otherwise, or when negative.
absl::StatusOr<absl::Duration> ParseDuration(std::string_view text);

// "1,234,567".
std::string FormatCount(uint64_t count);

}  // namespace terrace
