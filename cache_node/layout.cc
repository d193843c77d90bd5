#include "cache_node/layout.h"

#include <cstring>
#include <map>

#include "fmt/format.h"
#include "google/protobuf/message.h"
#include "proto/block.h"
#include "proto/block_key.h"
#include "proto/status.h"

namespace terrace {
namespace {

constexpr size_t kMaxTextBytes = 256;
constexpr int kMaxExtraEntries = 32;
constexpr uint32_t kMaxShards = 65536;  // a key's shard has 16 bits
// Enough to see what is wrong, and a message that gRPC still carries: its trailers have 8 KiB, in
// which a byte may take three.
constexpr size_t kEnoughDifferences = 1024;

using Fields = std::map<std::string, std::string>;

Fields FieldsOf(const control::v1::Layout& layout) {
  Fields fields = {{"model", layout.model()},
                   {"kv_dtype", layout.kv_dtype()},
                   {"format", layout.format()},
                   {"block_tokens", std::to_string(layout.block_tokens())},
                   {"layers", std::to_string(layout.layers())},
                   {"kv_heads", std::to_string(layout.kv_heads())},
                   {"head_dim", std::to_string(layout.head_dim())},
                   {"shards", std::to_string(layout.shards())},
                   {"cache_group", layout.cache_group()},
                   {"salt", layout.salt()},
                   {"block_bytes", std::to_string(layout.block_bytes())},
                   {"segments", std::to_string(layout.segments())}};
  for (const auto& [name, value] : layout.extra()) fields["extra." + name] = value;
  return fields;
}

Fields FieldsOf(const control::v1::Layout& layout, const control::v1::HashScheme& scheme) {
  Fields fields = FieldsOf(layout);
  fields["hash_scheme.algorithm"] = scheme.algorithm();
  fields["hash_scheme.seed_fingerprint"] = scheme.seed_fingerprint();
  return fields;
}

bool HasUnknownFields(const google::protobuf::Message& message) {
  return !message.GetReflection()->GetUnknownFields(message).empty();
}

absl::Status Invalid(const std::string& field, const std::string& what) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", field, what));
}

}  // namespace

absl::Status ValidateDefinition(const control::v1::Layout& layout,
                                const control::v1::HashScheme& scheme, uint32_t max_block_bytes) {
  // What is not understood cannot be compared, and it would be kept with the rest, unbounded.
  if (HasUnknownFields(layout))
    return Invalid("layout", "has a field that this node does not know");
  if (HasUnknownFields(scheme)) {
    return Invalid("hash_scheme", "has a field that this node does not know");
  }
  if (layout.extra_size() > kMaxExtraEntries) {
    return Invalid("layout.extra", fmt::format("more than {} entries", kMaxExtraEntries));
  }
  for (const auto& [name, value] : FieldsOf(layout, scheme)) {
    if (name.size() > kMaxTextBytes || value.size() > kMaxTextBytes) {
      return Invalid(name.substr(0, kMaxTextBytes),
                     fmt::format("longer than {} bytes", kMaxTextBytes));
    }
  }
  if (layout.model().empty()) return Invalid("layout.model", "empty");
  if (layout.block_tokens() == 0) return Invalid("layout.block_tokens", "0");
  if (layout.shards() == 0 || layout.shards() > kMaxShards) {
    return Invalid("layout.shards",
                   fmt::format("{} is outside 1 to {}", layout.shards(), kMaxShards));
  }
  const absl::Status shape =
      Validate(BlockShape{layout.block_bytes(), layout.segments()}, max_block_bytes);
  return shape.ok() ? shape : Invalid("layout", std::string(shape.message()));
}

uint64_t LayoutId(const control::v1::Layout& layout) {
  // Lengths in front of texts: no two definitions have one text.
  std::string text = "terrace layout 1\n";
  for (const auto& [name, value] : FieldsOf(layout)) {
    text += fmt::format("{}:{}={}:{}\n", name.size(), name, value.size(), value);
  }
  const Digest digest = Sha256(AsBytes(text));
  uint64_t id;
  std::memcpy(&id, digest.bytes.data(), sizeof(id));
  return id;
}

std::string Differences(const control::v1::Layout& existing,
                        const control::v1::HashScheme& existing_scheme,
                        const control::v1::Layout& wanted,
                        const control::v1::HashScheme& wanted_scheme) {
  const Fields here = FieldsOf(existing, existing_scheme);
  const Fields there = FieldsOf(wanted, wanted_scheme);
  Fields both = here;
  both.insert(there.begin(), there.end());
  // An entry of `extra` may be missing, which is not the same as empty.
  const auto show = [](const Fields& fields, const std::string& name) {
    const auto it = fields.find(name);
    return it == fields.end() ? std::string("absent") : fmt::format("'{}'", it->second);
  };
  std::string text;
  for (const auto& [name, unused] : both) {
    const std::string is = show(here, name), wants = show(there, name);
    if (is == wants) continue;
    if (text.size() > kEnoughDifferences) return text + "; and more";
    text += fmt::format("{}{} is {}, not {}", text.empty() ? "" : "; ", name, is, wants);
  }
  return text;
}

}  // namespace terrace
