// The stream of one TCP connection as a peer may send it: DecodeMessageHeader, and TcpReceiver
// behind a socket. What the handler is told never exceeds what was announced, a landing is told
// once, and how the stream is cut into reads changes nothing.
//
// The input: u8 how many bytes arrive at a time (0: all at once), then the stream.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "cluster/message_header.h"
#include "cluster/tcp_receiver.h"
#include "cluster/transport.h"
#include "tests/fuzz/require.h"

namespace terrace {
namespace {

void JudgeHeader(ByteSpan bytes) {
  const auto whole = DecodeMessageHeader(bytes);
  bool broken = false;
  for (size_t length = 0; length < std::min(bytes.size(), kMessageHeaderBytes); ++length) {
    const auto part = DecodeMessageHeader(bytes.first(length));
    Require(part.ok() ? !part->has_value() : !whole.ok(), "a part of a header is not one");
    Require(part.ok() ? !broken : true, "what is broken stays broken");
    broken = !part.ok();
  }
  if (!whole.ok() || !whole->has_value()) return;
  const MessageHeader& header = **whole;
  Require(header.frame_bytes <= kMaxFrameBytes, "frame within its bound");
  Require(header.payload_bytes <= kMaxPayloadBytes, "payload within its bound");
  std::array<std::byte, kMessageHeaderBytes> again;
  EncodeMessageHeader(header, again);
  Require(std::ranges::equal(again, bytes.first(kMessageHeaderBytes)), "one header, one encoding");
}

// What the stream holds, read apart from the code under test.
struct Expected {
  std::vector<std::vector<std::byte>> frames;
  std::vector<std::byte> payloads;  // those that arrive whole or in part
};

Expected Read(ByteSpan stream) {
  Expected expected;
  while (true) {
    const auto header = DecodeMessageHeader(stream);
    if (!header.ok() || !header->has_value()) return expected;
    stream = stream.subspan(kMessageHeaderBytes);
    if ((*header)->kind != MessageKind::kData) continue;
    if (stream.size() < (*header)->frame_bytes) return expected;
    const ByteSpan frame = stream.first((*header)->frame_bytes);
    expected.frames.emplace_back(frame.begin(), frame.end());
    stream = stream.subspan(frame.size());
    const ByteSpan payload = stream.first(std::min((*header)->payload_bytes, stream.size()));
    // Every second one is thrown away.
    if (expected.frames.size() % 2 == 0) {
      expected.payloads.insert(expected.payloads.end(), payload.begin(), payload.end());
    }
    stream = stream.subspan(payload.size());
  }
}

class Handler : public TransportHandler {
 public:
  void OnOpen(ConnectionId, bool) override {}
  void OnClose(ConnectionId, const absl::Status&) override {}
  Landing OnMessage(ConnectionId, ByteSpan frame, uint64_t payload_bytes) override {
    Require(!arriving_, "one payload at a time");
    Require(payload_bytes <= kMaxPayloadBytes, "no more payload than allowed");
    frames.emplace_back(frame.begin(), frame.end());
    if (payload_bytes == 0) return {};
    arriving_ = true;
    Landing landing;
    if (frames.size() % 2 == 0) {
      memory_.resize(payload_bytes);
      const MutableByteSpan whole(memory_);
      landing.pieces = {whole.first(payload_bytes / 3), whole.subspan(payload_bytes / 3)};
      landing.progress = [this](ByteSpan bytes) {
        payloads.insert(payloads.end(), bytes.begin(), bytes.end());
      };
    }
    landing.landed = [this](const absl::Status&) {
      Require(std::exchange(arriving_, false), "a landing is told once");
    };
    return landing;
  }
  bool arriving() const { return arriving_; }

  std::vector<std::vector<std::byte>> frames;
  std::vector<std::byte> payloads;

 private:
  bool arriving_ = false;
  std::vector<std::byte> memory_;
};

void JudgeStream(ByteSpan stream, size_t step) {
  const Expected expected = Read(stream);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) return;
  Handler handler;
  TransportCounters counters;
  TcpReceiver receiver(1, &handler, &counters, [](MessageKind) { return absl::OkStatus(); });
  receiver.Open();
  std::vector<std::byte> buffer(kReceiveBufferBytes);
  absl::Status status;
  while (!stream.empty() && status.ok()) {
    const ssize_t sent = write(ends[0], stream.data(), std::min(step, stream.size()));
    if (sent > 0) stream = stream.subspan(static_cast<size_t>(sent));
    status = receiver.Read(ends[1], buffer);
  }
  close(ends[0]);
  while (status.ok()) status = receiver.Read(ends[1], buffer);
  receiver.Fail(status);
  Require(!handler.arriving(), "the last landing is told");
  Require(handler.frames == expected.frames, "the frames are what arrived");
  Require(handler.payloads == expected.payloads, "the payloads are what arrived");
  close(ends[1]);
}

}  // namespace
}  // namespace terrace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace terrace;
  if (size == 0) return 0;
  const ByteSpan stream = std::as_bytes(std::span(data, size)).subspan(1);
  JudgeHeader(stream);
  JudgeStream(stream, data[0] == 0 ? stream.size() : data[0]);
  return 0;
}
