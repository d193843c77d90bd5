// Byte spans, and little-endian reading and writing with bounds. Readers of outside bytes go
// through ByteReader: it never reads past its span, and one `ok()` at the end judges the whole.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace terrace {

using ByteSpan = std::span<const std::byte>;
using MutableByteSpan = std::span<std::byte>;

inline ByteSpan AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view AsText(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

static_assert(std::endian::native == std::endian::little,
              "Wire and disk formats are little-endian; a big-endian port needs byte swaps here");

// Reads fields in order. After a read past the end every further read yields zero and ok() is
// false.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes) : bytes_(bytes) {}

  template <typename T>
  T Read() {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    T value{};
    if (ByteSpan raw = ReadBytes(sizeof(T)); !raw.empty()) {
      std::memcpy(&value, raw.data(), sizeof(T));
    }
    return value;
  }
  // A view into the source, or an empty span (and ok() false) when fewer bytes are left.
  ByteSpan ReadBytes(size_t count) {
    if (count > bytes_.size() - position_) {
      ok_ = false;
      position_ = bytes_.size();
      return {};
    }
    ByteSpan view = bytes_.subspan(position_, count);
    position_ += count;
    return view;
  }
  template <size_t N>
  void ReadInto(std::array<uint8_t, N>* out) {
    if (ByteSpan raw = ReadBytes(N); !raw.empty()) std::memcpy(out->data(), raw.data(), N);
  }

  bool ok() const { return ok_; }
  size_t remaining() const { return bytes_.size() - position_; }
  size_t position() const { return position_; }

 private:
  ByteSpan bytes_;
  size_t position_ = 0;
  bool ok_ = true;
};

// Appends to a vector that it owns; Take() hands it over.
class ByteWriter {
 public:
  explicit ByteWriter(size_t reserve = 0) { bytes_.reserve(reserve); }

  template <typename T>
  void Write(T value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    WriteBytes(std::as_bytes(std::span(&value, 1)));
  }
  void WriteBytes(ByteSpan raw) { bytes_.insert(bytes_.end(), raw.begin(), raw.end()); }
  template <size_t N>
  void WriteArray(const std::array<uint8_t, N>& raw) {
    WriteBytes(std::as_bytes(std::span(raw)));
  }

  size_t size() const { return bytes_.size(); }
  std::vector<std::byte>* mutable_bytes() { return &bytes_; }
  std::vector<std::byte> Take() && { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace terrace
