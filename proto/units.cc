#include "proto/units.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include "fmt/format.h"

namespace terrace {

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  const auto malformed = [&] {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not a size: expected a number and B, KiB, MiB, GiB or TiB", text));
  };
  const auto too_large = [&] {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is too large for a size: expected less than 8388608TiB", text));
  };
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool out_of_range = error == std::errc::result_out_of_range;
  if (error != std::errc() && !out_of_range) return malformed();
  if (!std::isfinite(number) || number < 0 || text.starts_with('-')) return malformed();
  std::string unit;
  for (const char* c = end; c != text.data() + text.size(); ++c) {
    if (*c != ' ') unit.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(*c))));
  }
  constexpr std::string_view kUnits[] = {"b", "kib", "mib", "gib", "tib"};
  int power = unit.empty() ? 0 : -1;
  for (int i = 0; i < 5; ++i) {
    if (unit == kUnits[i]) power = i;
  }
  if (power < 0) return malformed();
  const double bytes = std::ldexp(number, 10 * power);
  if (out_of_range || bytes >= 0x1p63) return too_large();
  if (bytes != std::floor(bytes)) return malformed();
  return static_cast<uint64_t>(bytes);
}

std::string FormatBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 6) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, kUnits[unit]);
}

absl::StatusOr<absl::Duration> ParseDuration(std::string_view text) {
  absl::Duration duration;
  if (!absl::ParseDuration(std::string(text), &duration) || duration < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not a duration: expected for example 250ms, 1.5s, 2h45m", text));
  }
  return duration;
}

std::string FormatCount(uint64_t count) {
  const std::string digits = std::to_string(count);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped.push_back(',');
    grouped.push_back(digits[i]);
  }
  return grouped;
}

}  // namespace terrace
