// What a wire benchmark measures: blocks that travel between two processes, from cold memory to
// cold memory. The bare UCX loop (the limit) and the transport (measured against it) share this
// interface, so that a harness can interleave their rounds.
#pragma once

#include <sched.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/bytes.h"

namespace terrace {

enum class BenchDirection : uint32_t {
  kGet = 0,  // the far process sends the blocks that the near one asks for
  kPut = 1,  // the near process sends, the far one acknowledges each block
};

struct BenchRound {
  double seconds = 0;
  double near_cpu_seconds = 0;  // of the whole process
  double far_cpu_seconds = 0;
};

class BenchLoop {
 public:
  virtual ~BenchLoop() = default;
  // Chooses what Run moves: `in_flight` blocks of `block_bytes` at a time.
  virtual absl::Status Setup(uint64_t block_bytes, int in_flight, BenchDirection direction) = 0;
  // Moves at least `bytes`; returns what that took.
  virtual absl::StatusOr<BenchRound> Run(uint64_t bytes) = 0;
};

// At least as large as any cache, touched; block after block is taken from it in turn.
class ColdMemory {
 public:
  static constexpr uint64_t kBytes = 1ull << 30;

  ColdMemory();
  ~ColdMemory();
  ColdMemory(const ColdMemory&) = delete;
  ColdMemory& operator=(const ColdMemory&) = delete;

  MutableByteSpan Next(uint64_t bytes);

 private:
  std::byte* memory_;
  uint64_t next_ = 0;
};

// Where the scheduler puts two talking processes changes their speed by more than anything that is
// measured here. So every near side runs on one processor, and every far side, ours or a peer's, on
// another. A machine that lacks one leaves them where they are.

// Keeps the calling thread, and all that it starts from now on, on the near side's processor.
void StayNear();

// What the calling thread starts meanwhile, processes included, stays on the far side's processor.
class StartingFar {
 public:
  StartingFar();
  ~StartingFar();
  StartingFar(const StartingFar&) = delete;
  StartingFar& operator=(const StartingFar&) = delete;

 private:
  cpu_set_t before_;
};

double ProcessCpuSeconds();
double NowSeconds();

// The far process: tests/bench/bench_far, started with a role; it prints its address first.
class FarProcess {
 public:
  static absl::StatusOr<std::unique_ptr<FarProcess>> Start(const std::string& role);
  ~FarProcess();
  const std::string& address() const { return address_; }

 private:
  FarProcess(int pid, int input, std::string address)
      : pid_(pid), input_(input), address_(std::move(address)) {}

  const int pid_;
  const int input_;  // the far process ends when this closes
  const std::string address_;
};

}  // namespace terrace
