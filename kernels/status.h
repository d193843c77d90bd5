// kernels/ builds alone, without abseil: its own small status. C++17, as nvcc compiles it.
#pragma once

#include <string>
#include <utility>

namespace terrace::kernels {

enum class Code {
  kOk,
  kUnavailable,      // no device, no driver, or the wrong one
  kOutOfMemory,      // the device has no room; nothing was taken
  kInvalidArgument,  // a size or a pointer that makes no sense
  kInternal,         // the driver reported something else; the message has its words
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

}  // namespace terrace::kernels
