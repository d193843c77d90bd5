#include "cache_node/mover.h"

#include <algorithm>

namespace terrace {
namespace {

// The ssd tier could not delete a namespace's blocks.
constexpr absl::Duration kDeleteAgainIn = absl::Seconds(1);

}  // namespace

Mover::Mover(TieredStore* store, NamespaceTable* namespaces)
    : store_(store),
      namespaces_(namespaces),
      wake_step_(std::max<uint64_t>(1, store->memory().size() / 512)),
      loop_("terrace-mover", [this] { return Work(); }) {
  store_->SetRoomListener([this] { loop_.Wake(); });
}

Mover::~Mover() { store_->SetRoomListener(nullptr); }

void Mover::Published(uint64_t bytes) {
  const uint64_t before = published_.fetch_add(bytes, std::memory_order_relaxed);
  if (before / wake_step_ != (before + bytes) / wake_step_) loop_.Wake();
}

absl::Duration Mover::Work() {
  const bool forgot = namespaces_->ForgetSome(store_);
  const bool tidied = store_->Tidy();
  if (forgot || tidied) return absl::ZeroDuration();
  return std::min(store_->TidyAgainIn(),
                  namespaces_->Deleting() ? kDeleteAgainIn : absl::InfiniteDuration());
}

}  // namespace terrace
