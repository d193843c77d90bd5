// A worker of one chain, whose blocks have bytes that follow from their number and its seed.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "gtest/gtest.h"

namespace terrace {

class TestWorker {
 public:
  static constexpr uint32_t kBlockBytes = 256 << 10, kSegments = 8, kBlockTokens = 16;
  static constexpr size_t kBlocks = 64;

  explicit TestWorker(ClientOptions options, uint8_t seed = 1) : seed_(seed) {
    options.transport = "tcp";
    client_ = Client::Connect(std::move(options)).value();
    NamespaceDefinition definition;
    definition.name = "test";
    definition.layout.model = "test";
    definition.layout.block_bytes = kBlockBytes;
    definition.layout.segments = kSegments;
    definition.layout.block_tokens = kBlockTokens;
    ns_ = client_->OpenNamespace(definition).value();
    chain_ = Chain::FromTokens(ns_, std::vector<uint32_t>(kBlocks * kBlockTokens, seed)).value();
  }

  Client& client() { return *client_; }
  const Namespace& ns() const { return ns_; }
  const Chain& chain() const { return *chain_; }
  std::vector<BlockKey> keys() const {
    std::vector<BlockKey> keys;
    for (size_t i = 0; i < kBlocks; ++i) keys.push_back(chain_->key(i));
    return keys;
  }
  // Of block i; no two 8 bytes in a row are those of another block or seed.
  std::vector<std::byte> Payload(size_t i) const {
    std::vector<std::byte> bytes(kBlockBytes);
    for (size_t at = 0; at < bytes.size(); ++at) {
      bytes[at] = static_cast<std::byte>(at % 2 == 0 ? i : 0x40 | seed_);
    }
    return bytes;
  }
  size_t PutAll() {
    std::vector<std::vector<std::byte>> bytes;
    std::vector<PutRequest> puts;
    for (size_t i = 0; i < kBlocks; ++i) bytes.push_back(Payload(i));
    for (size_t i = 0; i < kBlocks; ++i) puts.push_back({chain_->key(i), {bytes[i]}, {}});
    Operation put = client_->Put(ns_, std::move(puts), {.timeout = absl::Seconds(10)});
    put.Wait();
    return put.succeeded();
  }
  // How many blocks come back; none with other bytes, or with another outcome than a miss.
  size_t GetAll() {
    std::vector<std::vector<std::byte>> landed(kBlocks, std::vector<std::byte>(kBlockBytes));
    std::vector<GetRequest> gets;
    for (size_t i = 0; i < kBlocks; ++i) {
      gets.push_back({chain_->key(i), {MutableByteSpan(landed[i])}});
    }
    Operation get = client_->Get(ns_, std::move(gets), {.timeout = absl::Seconds(10)});
    get.Wait();
    for (size_t i = 0; i < kBlocks; ++i) {
      const Outcome outcome = get.results()[i].outcome;
      EXPECT_TRUE(outcome == Outcome::kOk || outcome == Outcome::kMiss) << ToString(outcome);
      EXPECT_TRUE(outcome != Outcome::kOk || landed[i] == Payload(i)) << i;
    }
    return get.succeeded();
  }

 private:
  const uint8_t seed_;
  std::unique_ptr<Client> client_;
  Namespace ns_;
  std::optional<Chain> chain_;
};

}  // namespace terrace
