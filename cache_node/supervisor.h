// The parent of the process that serves. It keeps what must outlive that one and starts it again
// when it dies: at once, then, while it dies sooner than a second after it was ready, after pauses
// that double up to five seconds. It has no threads and reads nothing but signals and what its
// child tells it; nothing that came over a network reaches it.
//
// SIGTERM and SIGINT are handed on as SIGTERM. A child that ends before it was ever ready, or that
// was told to, is not followed by another. One that cannot start three times in a row with what was
// kept starts without it.
#pragma once

#include <functional>

#include "cache_node/descriptor_store.h"

namespace terrace {

// Runs in the child. `ready` is called when it serves.
using Serve = std::function<int(DescriptorStore* keep, const Restarts& before,
                                const std::function<void()>& ready)>;

// Returns in the child with what `serve` returned, in the parent with the last child's exit code;
// ends as the child did where a signal ended it. Called by a process without threads, which may
// not use what it shares with the parent's terminal: SIGINT is ignored in the child, which ends
// (SIGKILL) when the parent is gone.
int Supervise(const Serve& serve);

}  // namespace terrace
