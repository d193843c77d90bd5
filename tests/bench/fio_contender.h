// fio doing what the ssd tier does in the same row, without knowing what it moves: the limit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/rounds.h"

namespace terrace::bench {

enum class FioDirection { kRead, kWrite };

// Bytes per second of the one job in the output of `--output-format=json`, notes before it
// included. Unavailable when the job failed, moved nothing, or the text is something else.
absl::StatusOr<double> ParseFioBandwidth(std::string_view output, FioDirection direction);

class FioContender {
 public:
  // Lays out a file of `file_bytes` in `folder`. NotFound when fio is not installed.
  static absl::StatusOr<std::unique_ptr<FioContender>> Start(const std::string& folder,
                                                             uint64_t file_bytes);

  // One round of a process of its own, with the time that fio itself tells, its start not counted.
  // Write: over the beginning of the file until all is synced. Read: random blocks of the file.
  absl::StatusOr<Measurement> Write(uint32_t block_bytes, size_t bytes, int depth);
  absl::StatusOr<Measurement> Read(uint32_t block_bytes, size_t bytes, int depth);

 private:
  FioContender(const std::string& folder, uint64_t file_bytes)
      : path_(folder + "/fio"), file_bytes_(file_bytes) {}
  absl::StatusOr<double> Run(FioDirection direction, const std::vector<std::string>& arguments);

  const std::string path_;
  const uint64_t file_bytes_;
  std::string engine_;
  uint64_t seed_ = 0;
};

}  // namespace terrace::bench
