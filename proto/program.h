// What every program of ours does around its own work: output that cannot fail loudly, and an end
// that a caller can rely on.
#pragma once

#include <cstdio>
#include <string>
#include <utility>

#include "fmt/format.h"

namespace terrace {

// Formats to `out`. Never throws for a full disk or a closed pipe: RunProgram tells of those.
void WriteText(std::FILE* out, const std::string& text);
template <typename... Args>
void PrintTo(std::FILE* out, fmt::format_string<Args...> format, Args&&... args) {
  WriteText(out, fmt::format(format, std::forward<Args>(args)...));
}

// Runs `main` and returns its exit code; 1, with a line on standard error, when it would have been
// 0 and standard output could not be written whole, or when the system ran out of memory, threads
// or descriptors so early that there was no other way to say it.
int RunProgram(const char* name, int (*main)(int, const char* const*), int argc,
               const char* const* argv);

}  // namespace terrace
