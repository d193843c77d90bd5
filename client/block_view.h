// A block read where it lies: in the memory of a node on this machine, without a copy.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/block.h"
#include "proto/bytes.h"

namespace terrace {

// What a view stands on: the node's memory and a lease, or memory of its own.
struct BlockViewSource;

// Move-only. While it lives, and as long as its lease was asked for, the node keeps the block where
// it is. Its bytes were verified against the checksums of their writer when the view was made.
//
// A lease can end early: with the connection to the node, when the node is killed, or when its time
// is over. The memory stays readable even then (nothing faults), but may come to hold something
// else. So whoever has read from a view asks intact() afterwards, and throws away what he made of
// the bytes when it says no:
//
//   Consume(view.segment(layer));
//   if (!view.intact()) Recompute();
//
// Thread-compatible; it may outlive the client.
class BlockView {
 public:
  BlockView();
  BlockView(BlockView&& other) noexcept;
  BlockView& operator=(BlockView&& other) noexcept;
  ~BlockView();

  // False: there is no such block, or it could not be read; the rest is empty then.
  explicit operator bool() const { return source_ != nullptr; }
  ByteSpan bytes() const { return bytes_; }
  uint32_t segments() const { return shape_.segments; }
  ByteSpan segment(uint32_t i) const {
    return bytes_.subspan(size_t{i} * shape_.segment_bytes(), shape_.segment_bytes());
  }
  // Whether everything read from the view up to this call was the block's. Once false it stays so.
  bool intact() const;
  // Whether the bytes are the node's own; else they travelled, or were copied.
  bool in_place() const;
  uint64_t generation() const { return generation_; }
  const BlockMetadata& metadata() const { return metadata_; }
  // Gives the lease back.
  void Release() { *this = BlockView(); }

 private:
  friend class BlockViewMaker;

  std::shared_ptr<const BlockViewSource> source_;
  ByteSpan bytes_;
  BlockShape shape_;
  uint64_t generation_ = 0;
  BlockMetadata metadata_;
};

}  // namespace terrace
