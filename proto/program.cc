#include "proto/program.h"

#include <exception>

namespace terrace {

void WriteText(std::FILE* out, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), out);
}

int RunProgram(const char* name, int (*main)(int, const char* const*), int argc,
               const char* const* argv) {
  int code = 1;
  try {
    code = main(argc, argv);
  } catch (const std::exception& error) {
    PrintTo(stderr, "{}: {}; look at ulimit -a and at the machine's memory\n", name, error.what());
    return 1;
  }
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written) return code;
  PrintTo(stderr, "{}: standard output could not be written\n", name);
  return code == 0 ? 1 : code;
}

}  // namespace terrace
