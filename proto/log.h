// Logging to standard error, one line per event: time, level, component, message. For events
// that a person may act upon; what merely happens often is a metric.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "fmt/format.h"

namespace terrace {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Messages below `level` are dropped. Info at start.
void SetLogLevel(LogLevel level);
// "debug", "info", "warning", "error".
absl::Status SetLogLevel(std::string_view name);

bool LogEnabled(LogLevel level);
void LogLine(LogLevel level, std::string_view component, const std::string& message);

// Log(LogLevel::kInfo, "session", "{} opened by {}", id, tenant). Thread-safe.
template <typename... Args>
void Log(LogLevel level, std::string_view component, fmt::format_string<Args...> format,
         Args&&... args) {
  if (LogEnabled(level)) {
    LogLine(level, component, fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace terrace
