// A namespace's definition as text: what is compared, and what the layout id is made of.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/control.pb.h"

namespace terrace {

// InvalidArgument names the field and its bound. Texts have at most 256 bytes, `extra` at most 32
// entries, blocks at most `max_block_bytes`; there is no field that is not in control.proto.
absl::Status ValidateDefinition(const control::v1::Layout& layout,
                                const control::v1::HashScheme& scheme, uint32_t max_block_bytes);

// The first eight bytes of the SHA-256 of every field of the layout, by name and in fixed order.
uint64_t LayoutId(const control::v1::Layout& layout);

// "block_tokens is '16', not '64'; extra.rope is absent, not 'yarn'": the fields in which `wanted`
// differs from `existing`, each or (in at most 2 KiB) the first of them. Empty when they agree.
std::string Differences(const control::v1::Layout& existing,
                        const control::v1::HashScheme& existing_scheme,
                        const control::v1::Layout& wanted,
                        const control::v1::HashScheme& wanted_scheme);

}  // namespace terrace
