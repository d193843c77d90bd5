// What the bytes of a block must be, from nothing but its key: whoever holds a block can judge
// it alone, without knowing who wrote it and when.
#pragma once

#include <cstdint>

#include "proto/block_key.h"
#include "proto/bytes.h"

namespace terrace {

class Payload {
 public:
  explicit Payload(const BlockKey& key);

  // The block's bytes from its beginning; lengths are multiples of eight.
  void Fill(MutableByteSpan out) const;
  // How many of `bytes` are not what they must be.
  uint64_t CountWrong(ByteSpan bytes) const;

 private:
  uint64_t seed_;
};

}  // namespace terrace
