#include "proto/log.h"

#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

namespace terrace {
namespace {

spdlog::logger& Logger() {
  // Never destroyed: threads may log while the process exits.
  static spdlog::logger* const logger = [] {
    auto* created =
        new spdlog::logger("terrace", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    created->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%L%$ %v");
    created->flush_on(spdlog::level::info);
    return created;
  }();
  return *logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void SetLogLevel(LogLevel level) { Logger().set_level(ToSpdlog(level)); }

absl::Status SetLogLevel(std::string_view name) {
  constexpr std::pair<std::string_view, LogLevel> kLevels[] = {{"debug", LogLevel::kDebug},
                                                               {"info", LogLevel::kInfo},
                                                               {"warning", LogLevel::kWarning},
                                                               {"error", LogLevel::kError}};
  for (const auto& [level_name, level] : kLevels) {
    if (name == level_name) {
      SetLogLevel(level);
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      fmt::format("'{}' is not a log level: debug, info, warning or error", name));
}

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

void LogLine(LogLevel level, std::string_view component, const std::string& message) {
  Logger().log(ToSpdlog(level), "{}: {}", component, message);
}

}  // namespace terrace
