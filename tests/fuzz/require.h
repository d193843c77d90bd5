// What a fuzz target finds: an invariant that does not hold, said before the program ends.
#pragma once

#include <stdio.h>
#include <unistd.h>

#include <cstdlib>

namespace terrace {

inline void Require(bool holds, const char* invariant) {
  if (holds) return;
  dprintf(STDERR_FILENO, "broken: %s\n", invariant);  // the stream may have been turned off
  std::abort();
}

}  // namespace terrace
