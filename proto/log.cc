#include "proto/log.h"

#include <poll.h>
#include <unistd.h>

#include "proto/mutex.h"
#include "spdlog/details/null_mutex.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"

namespace terrace {
namespace {

// Standard error. A line that would block, since nobody reads the pipe, is lost: a log must not
// stop what it tells about.
class StandardError : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& line) override {
    MutexLock lock(&mutex_);
    spdlog::memory_buf_t text;
    formatter_->format(line, text);
    // A pipe that polls as writable takes this much at once.
    constexpr size_t kMost = 4096;
    if (text.size() > kMost) {
      text.resize(kMost);
      text[kMost - 1] = '\n';
    }
    pollfd writable{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    if (poll(&writable, 1, /*timeout=*/0) != 1 || (writable.revents & POLLOUT) == 0) return;
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  }
  void flush_() override {}

 private:
  Mutex mutex_;
};

spdlog::logger& Logger() {
  // Never destroyed: threads may log while the process exits.
  static spdlog::logger* const logger = [] {
    auto* created = new spdlog::logger("terrace", std::make_shared<StandardError>());
    created->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
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
