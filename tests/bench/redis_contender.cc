#include "tests/bench/redis_contender.h"

#include <algorithm>

#include "fmt/format.h"
#include "proto/clock.h"
#include "proto/status.h"
#include "tests/bench/bench_loop.h"

namespace terrace::bench {

namespace {

absl::StatusOr<std::unique_ptr<RedisServer>> StartServer() {
  const StartingFar far;
  return RedisServer::Start();
}

}  // namespace

RedisContender::RedisContender(std::unique_ptr<RedisServer> server,
                               std::unique_ptr<RedisClient> client,
                               std::unique_ptr<RedisClient> local_client)
    : server_(std::move(server)),
      client_(std::move(client)),
      local_client_(std::move(local_client)),
      arena_(kArenaBytes) {}

absl::StatusOr<std::unique_ptr<RedisContender>> RedisContender::Start() {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<RedisServer> server, StartServer());
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<RedisClient> client,
                           RedisClient::Connect(server->port()));
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<RedisClient> local_client,
                           RedisClient::ConnectLocal(server->port()));
  return std::unique_ptr<RedisContender>(
      new RedisContender(std::move(server), std::move(client), std::move(local_client)));
}

absl::Status RedisContender::Fill(uint32_t block_bytes, size_t blocks) {
  TERRACE_RETURN_IF_ERROR(client_->Clear());
  block_bytes_ = block_bytes;
  filled_ = blocks;
  next_ = 0;
  return Run(blocks * block_bytes, 8, true, client_.get()).status();
}

absl::StatusOr<Measurement> RedisContender::Get(size_t bytes, int depth, Socket socket) {
  return Run(bytes, depth, false, socket == Socket::kUnix ? local_client_.get() : client_.get());
}

absl::StatusOr<Measurement> RedisContender::Put(size_t bytes, int depth, Socket socket) {
  return Run(bytes, depth, true, socket == Socket::kUnix ? local_client_.get() : client_.get());
}

absl::StatusOr<Measurement> RedisContender::Run(size_t bytes, int depth, bool put,
                                                RedisClient* client) {
  const size_t count = std::max<size_t>(bytes / block_bytes_, static_cast<size_t>(depth));
  std::vector<std::string> names;
  std::vector<MutableByteSpan> memory;
  for (size_t i = 0; i < count; ++i) {
    names.push_back(fmt::format("block:{:032}", next_++ % filled_));
    memory.push_back(arena_.Next(block_bytes_));
  }
  const absl::Duration cpu_before = OwnCpuTime() + server_->process().CpuTime();
  const absl::Duration start = Clock::Real()->Now();
  if (put) {
    TERRACE_RETURN_IF_ERROR(client->Set(names, {memory.begin(), memory.end()}, depth));
  } else {
    TERRACE_RETURN_IF_ERROR(client->Get(names, memory, depth));
  }
  const double seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - start);
  const double gigabytes = static_cast<double>(count * block_bytes_) / 1e9;
  const absl::Duration cpu = OwnCpuTime() + server_->process().CpuTime() - cpu_before;
  return Measurement{gigabytes / seconds, absl::ToDoubleSeconds(cpu) / gigabytes};
}

}  // namespace terrace::bench
