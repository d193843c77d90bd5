// The parent of the process that serves. It keeps what must outlive that one and starts it again
// when it dies: at once, then, while it dies sooner than a second after it was ready, after pauses
// that double up to five seconds. It has no threads and reads nothing but signals and what its
// child tells it; nothing that came over a network reaches it.
//
// SIGTERM and SIGINT are for the parent, which hands them on as kStopSignal: a terminal and a
// service manager send theirs to both. A child that ends before it was ever ready, or that was told
// to, is not followed by another. One that cannot start three times in a row with what was kept
// starts without it.
//
// A service manager is told how it goes, and keeps the same files (cache_node/service_manager.h),
// so that they outlive the parent, too.
#pragma once

#include <signal.h>

#include <functional>

#include "cache_node/descriptor_store.h"

namespace terrace {

// Tells the child to end. Its effect is the usual one, the end at once, unless `Serve` changes
// that.
constexpr int kStopSignal = SIGUSR1;

// Runs in the child. `ready` is called when it serves.
using Serve = std::function<int(DescriptorStore* keep, const Restarts& before,
                                const std::function<void()>& ready)>;

// Returns in the child with what `serve` returned, in the parent with the last child's exit code;
// ends as the child did where a signal ended it. Called by a process without threads. The child
// ignores SIGTERM and SIGINT, and ends (SIGKILL) when the parent is gone.
int Supervise(const Serve& serve);

}  // namespace terrace
