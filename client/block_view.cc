#include "client/block_view.h"

#include <algorithm>

#include "client/local_memory.h"
#include "client/view_task.h"
#include "proto/checksum.h"
#include "proto/envelope.h"

namespace terrace {

struct BlockViewSource {
  // In place.
  std::shared_ptr<const LocalMemory> memory;
  std::shared_ptr<PlaceLease> lease;
  ByteSpan envelope;  // in `memory`
  // Else.
  std::vector<std::byte> own;
};

BlockView::BlockView() = default;
BlockView::BlockView(BlockView&& other) noexcept { *this = std::move(other); }
BlockView& BlockView::operator=(BlockView&& other) noexcept {
  source_ = std::exchange(other.source_, nullptr);
  bytes_ = std::exchange(other.bytes_, {});
  shape_ = std::exchange(other.shape_, {});
  generation_ = std::exchange(other.generation_, 0);
  metadata_ = std::exchange(other.metadata_, {});
  return *this;
}
BlockView::~BlockView() = default;

bool BlockView::intact() const {
  if (source_ == nullptr) return false;
  return source_->memory == nullptr || LoadGeneration(source_->envelope) == generation_;
}

bool BlockView::in_place() const { return source_ != nullptr && source_->memory != nullptr; }

BlockView BlockViewMaker::InPlace(const Namespace& ns, const BlockKey& key,
                                  const LeasedPlace& leased) {
  const LentFrame::Item& place = leased.place;
  if (!leased.memory->Holds(place.value, ns.shape.length) ||
      !leased.memory->HoldsEnvelope(place.envelope, ns.shape.segments)) {
    return {};
  }
  const ByteSpan shared = leased.memory->EnvelopeAt(place.envelope, ns.shape.segments);
  const std::vector<std::byte> own(shared.begin(), shared.end());
  const absl::StatusOr<EnvelopeView> envelope = EnvelopeView::Parse(own);
  if (!envelope.ok() || envelope->generation() != place.generation || envelope->key() != key ||
      envelope->layout_id() != ns.layout_id || envelope->shape() != ns.shape) {
    return {};
  }
  BlockView view;
  view.bytes_ = leased.memory->bytes().subspan(place.value, ns.shape.length);
  view.shape_ = ns.shape;
  view.generation_ = place.generation;
  view.metadata_ = envelope->metadata();
  view.source_ = std::make_shared<const BlockViewSource>(
      BlockViewSource{leased.memory, leased.lease, shared, {}});
  for (uint32_t i = 0; i < view.segments(); ++i) {
    if (Crc32c(view.segment(i)) != envelope->checksum(i)) return {};
  }
  return view;
}

BlockView BlockViewMaker::Owned(const Namespace& ns, std::vector<std::byte> bytes,
                                const BlockResult& result) {
  BlockView view;
  auto source = std::make_shared<BlockViewSource>();
  source->own = std::move(bytes);
  view.bytes_ = source->own;
  view.shape_ = ns.shape;
  view.generation_ = result.generation;
  view.metadata_ = result.metadata;
  view.source_ = std::move(source);
  return view;
}

}  // namespace terrace
