// Redis doing what Terrace does in the same row.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/redis.h"
#include "tests/bench/rounds.h"
#include "tests/bench/terrace_contender.h"

namespace terrace::bench {

class RedisContender {
 public:
  static absl::StatusOr<std::unique_ptr<RedisContender>> Start();

  // The contract of TerraceContender's functions of the same names; nothing is verified, which is
  // how Redis is used.
  absl::Status Fill(uint32_t block_bytes, size_t blocks);
  enum class Socket { kTcp, kUnix };
  absl::StatusOr<Measurement> Get(size_t bytes, int depth, Socket socket = Socket::kTcp);
  absl::StatusOr<Measurement> Put(size_t bytes, int depth, Socket socket = Socket::kTcp);

 private:
  RedisContender(std::unique_ptr<RedisServer> server, std::unique_ptr<RedisClient> client,
                 std::unique_ptr<RedisClient> local_client);
  absl::StatusOr<Measurement> Run(size_t bytes, int depth, bool put, RedisClient* client);

  std::unique_ptr<RedisServer> server_;
  std::unique_ptr<RedisClient> client_, local_client_;
  ColdArena arena_;
  size_t block_bytes_ = 0;
  size_t filled_ = 0;
  uint64_t next_ = 0;
};

}  // namespace terrace::bench
