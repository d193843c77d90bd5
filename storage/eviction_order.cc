#include "storage/eviction_order.h"

namespace terrace {

void EvictionOrder::Place(size_t position, Item item) {
  heap_[position] = item;
  item.block->position = static_cast<uint32_t>(position);
}

void EvictionOrder::SiftUp(size_t position, Item item) {
  while (position > 0) {
    const size_t parent = (position - 1) / 2;
    if (!Before(item, heap_[parent])) break;
    Place(position, heap_[parent]);
    position = parent;
  }
  Place(position, item);
}

void EvictionOrder::SiftDown(size_t position, Item item) {
  for (size_t child; (child = 2 * position + 1) < heap_.size(); position = child) {
    if (child + 1 < heap_.size() && Before(heap_[child + 1], heap_[child])) ++child;
    if (!Before(heap_[child], item)) break;
    Place(position, heap_[child]);
  }
  Place(position, item);
}

void EvictionOrder::Insert(Ranked* block) {
  const Item item{block->rank().score, block};
  heap_.push_back(item);
  SiftUp(heap_.size() - 1, item);
}

void EvictionOrder::Remove(Ranked* block) {
  const size_t hole = block->position;
  block->position = Ranked::kNotOrdered;
  const Item last = heap_.back();
  heap_.pop_back();
  if (hole == heap_.size()) return;
  if (hole > 0 && Before(last, heap_[(hole - 1) / 2])) {
    SiftUp(hole, last);
  } else {
    SiftDown(hole, last);
  }
}

Ranked* EvictionOrder::First() {
  while (!heap_.empty()) {
    const Item top = heap_.front();
    const double score = top.block->rank().score;
    if (score == top.score) return top.block;
    SiftDown(0, {score, top.block});
  }
  return nullptr;
}

}  // namespace terrace
