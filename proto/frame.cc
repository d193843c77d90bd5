#include "proto/frame.h"

#include <cassert>

#include "fmt/format.h"
#include "proto/envelope.h"
#include "proto/status.h"

namespace terrace {
namespace {

constexpr uint16_t kMagic = 0x4654;

// The type byte of a frame is the index of its body in FrameBody, plus one.
template <size_t I = 0>
absl::StatusOr<FrameBody> MakeBody(uint8_t type) {
  if constexpr (I == std::variant_size_v<FrameBody>) {
    return absl::InvalidArgumentError(fmt::format("frame: unknown type {}", type));
  } else {
    if (type == I + 1) return FrameBody(std::in_place_index<I>);
    return MakeBody<I + 1>(type);
  }
}

// One description of each body serves both directions: Coder is Encoder or Decoder, and the
// operators below name the fields in order.
class Encoder {
 public:
  explicit Encoder(ByteWriter* out) : out_(out) {}
  template <typename T>
  void Value(const T& value) {
    out_->Write(value);
  }
  void Flag(const bool& value) { out_->Write<uint8_t>(value ? 1 : 0); }
  template <size_t N>
  void Array(const std::array<uint8_t, N>& value) {
    out_->WriteArray(value);
  }
  void Status(const WireStatus& value) { out_->Write(value); }
  void TierOf(const Tier& value) { out_->Write(value); }
  void Envelope(const std::vector<std::byte>& bytes) {
    assert(bytes.size() <= kMaxEnvelopeBytes);
    out_->Write(static_cast<uint16_t>(bytes.size()));
    out_->WriteBytes(bytes);
  }
  template <typename T, typename Each>
  void List(const std::vector<T>& list, Each each) {
    assert(list.size() <= kMaxKeysPerFrame);
    out_->Write(static_cast<uint16_t>(list.size()));
    for (const T& item : list) each(*this, item);
  }

 private:
  ByteWriter* const out_;
};

class Decoder {
 public:
  explicit Decoder(ByteReader* in) : in_(in) {}
  template <typename T>
  void Value(T& value) {
    value = in_->Read<T>();
  }
  void Flag(bool& value) {
    const auto raw = in_->Read<uint8_t>();
    Require(raw <= 1, "a flag is neither 0 nor 1");
    value = raw == 1;
  }
  template <size_t N>
  void Array(std::array<uint8_t, N>& value) {
    in_->ReadInto(&value);
  }
  void Status(WireStatus& value) {
    value = in_->Read<WireStatus>();
    Require(value <= kLastWireStatus, "unknown status");
  }
  void TierOf(Tier& value) {
    value = in_->Read<Tier>();
    Require(value <= Tier::kSsd, "unknown tier");
  }
  void Envelope(std::vector<std::byte>& bytes) {
    const auto size = in_->Read<uint16_t>();
    Require(size <= kMaxEnvelopeBytes, "envelope too long");
    if (!ok()) return;
    ByteSpan view = in_->ReadBytes(size);
    bytes.assign(view.begin(), view.end());
  }
  template <typename T, typename Each>
  void List(std::vector<T>& list, Each each) {
    const auto count = in_->Read<uint16_t>();
    Require(count <= kMaxKeysPerFrame, "too many items");
    if (!ok()) return;
    list.resize(count);
    for (T& item : list) each(*this, item);
  }

  bool ok() const { return in_->ok() && error_.empty(); }
  const std::string& error() const { return error_; }

 private:
  void Require(bool condition, const char* what) {
    if (!condition && error_.empty()) error_ = what;
  }

  ByteReader* const in_;
  std::string error_;
};

constexpr auto kKeyFields = [](auto& coder, auto& key) {
  coder.Array(key.digest.bytes);
  coder.Value(key.shard);
};

constexpr auto kReserveItemFields = [](auto& coder, auto& item) {
  kKeyFields(coder, item.key);
  coder.Value(item.shape.length);
  coder.Value(item.shape.segments);
  coder.Value(item.depth);
  coder.Value(item.opaque_bytes);
};

template <typename Frame, typename Candidate>
constexpr bool kIs = std::is_same_v<std::remove_const_t<Frame>, Candidate>;

template <typename C, typename F>
void RequestFields(C& coder, F& f) {
  if constexpr (kIs<F, HelloFrame>) {
    coder.Array(f.token);
  } else if constexpr (kIs<F, MatchFrame>) {
    coder.Value(f.ns.value);
    coder.Flag(f.count_use);
    coder.Value(f.lease_ms);
    coder.List(f.keys, kKeyFields);
  } else if constexpr (kIs<F, GetFrame>) {
    coder.Value(f.ns.value);
    coder.Value(f.deadline_ms);
    coder.List(f.items, [](auto& c, auto& item) {
      kKeyFields(c, item.key);
      c.Value(item.first_segment);
      c.Value(item.segment_count);
    });
  } else if constexpr (kIs<F, ReserveFrame>) {
    coder.Value(f.ns.value);
    coder.Value(f.deadline_ms);
    coder.List(f.items, kReserveItemFields);
  } else if constexpr (kIs<F, ValueFrame>) {
    coder.Value(f.index);
    coder.Value(f.reservation);
    coder.Envelope(f.envelope);
  } else if constexpr (kIs<F, TouchFrame> || kIs<F, PersistFrame>) {
    coder.Value(f.ns.value);
    coder.List(f.keys, kKeyFields);
  } else if constexpr (kIs<F, PutFrame>) {
    coder.Value(f.ns.value);
    coder.Value(f.deadline_ms);
    kReserveItemFields(coder, f.item);
    coder.Envelope(f.envelope);
  } else if constexpr (kIs<F, LandedFrame>) {
    coder.Value(f.ns.value);
    coder.Value(f.deadline_ms);
    coder.Value(f.index);
    coder.Value(f.reservation);
    kReserveItemFields(coder, f.item);
    coder.Value(f.offset);
    coder.Envelope(f.envelope);
  } else if constexpr (kIs<F, LendFrame>) {
    coder.Value(f.ns.value);
    coder.Value(f.deadline_ms);
    coder.Value(f.lease_ms);
    coder.List(f.released, [](auto& c, auto& lease) { c.Value(lease); });
    coder.List(f.keys, kKeyFields);
  } else if constexpr (kIs<F, ReleaseFrame>) {
    coder.Value(f.lease);
  } else {
    static_assert(kIs<F, CancelFrame>);
  }
}

template <typename C, typename F>
void Fields(C& coder, F& f) {
  if constexpr (kIs<F, HelloReplyFrame>) {
    coder.Status(f.status);
  } else if constexpr (kIs<F, MatchReplyFrame>) {
    coder.Status(f.status);
    coder.Value(f.lease);
    coder.List(f.tiers, [](auto& c, auto& tier) { c.TierOf(tier); });
  } else if constexpr (kIs<F, BlockFrame>) {
    coder.Value(f.index);
    coder.Status(f.status);
    coder.Envelope(f.envelope);
  } else if constexpr (kIs<F, ReserveReplyFrame>) {
    coder.List(f.items, [](auto& c, auto& item) {
      c.Status(item.status);
      c.Value(item.reservation);
    });
  } else if constexpr (kIs<F, LentFrame>) {
    coder.Value(f.lease);
    coder.List(f.items, [](auto& c, auto& item) {
      c.Value(item.index);
      c.Status(item.status);
      c.Value(item.value);
      c.Value(item.envelope);
      c.Value(item.generation);
    });
  } else if constexpr (kIs<F, PutReplyFrame>) {
    coder.Value(f.index);
    coder.Status(f.status);
  } else {
    RequestFields(coder, f);
  }
}

}  // namespace

const char* ToString(WireStatus status) {
  switch (status) {
    case WireStatus::kOk:
      return "ok";
    case WireStatus::kMiss:
      return "miss";
    case WireStatus::kAskAgain:
      return "ask again";
    case WireStatus::kExists:
      return "exists";
    case WireStatus::kPending:
      return "pending";
    case WireStatus::kNoSpace:
      return "no space now";
    case WireStatus::kNeverFits:
      return "never fits";
    case WireStatus::kBadRequest:
      return "bad request";
    case WireStatus::kUnknownNamespace:
      return "unknown namespace";
    case WireStatus::kForeignLayout:
      return "foreign layout";
    case WireStatus::kChecksumMismatch:
      return "checksum mismatch";
    case WireStatus::kOverloaded:
      return "overloaded";
    case WireStatus::kUnauthenticated:
      return "unauthenticated";
    case WireStatus::kStopping:
      return "stopping";
    case WireStatus::kNotDurable:
      return "not durable";
  }
  return "unknown";
}

std::vector<std::byte> Encode(uint64_t request_id, const FrameBody& body) {
  ByteWriter out(256);
  out.Write(kMagic);
  out.Write(kFrameVersion);
  out.Write(static_cast<uint8_t>(body.index() + 1));
  out.Write(uint32_t{0});
  out.Write(request_id);
  Encoder encoder(&out);
  std::visit([&](const auto& frame) { Fields(encoder, frame); }, body);
  return std::move(out).Take();
}

absl::StatusOr<Frame> Decode(ByteSpan bytes) {
  ByteReader in(bytes);
  const auto magic = in.Read<uint16_t>();
  const auto version = in.Read<uint8_t>();
  const auto type = in.Read<uint8_t>();
  const auto reserved = in.Read<uint32_t>();
  Frame frame;
  frame.request_id = in.Read<uint64_t>();
  if (!in.ok()) return absl::InvalidArgumentError("frame: shorter than its header");
  if (magic != kMagic || reserved != 0) return absl::InvalidArgumentError("frame: not a frame");
  if (version != kFrameVersion) {
    return absl::InvalidArgumentError(fmt::format(
        "frame: the peer speaks version {} of the data plane, this side version {}: run "
        "the same release of Terrace on both",
        version, kFrameVersion));
  }
  TERRACE_ASSIGN_OR_RETURN(frame.body, MakeBody(type));
  Decoder decoder(&in);
  std::visit([&](auto& body) { Fields(decoder, body); }, frame.body);
  if (!decoder.ok() || in.remaining() != 0) {
    std::string why = decoder.error();
    if (why.empty()) why = in.ok() ? "trailing bytes" : "truncated";
    return absl::InvalidArgumentError(fmt::format("frame type {}: {}", type, why));
  }
  return frame;
}

}  // namespace terrace
