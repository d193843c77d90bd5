#include "tests/bench/fio_contender.h"

#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "proto/status.h"
#include "tests/support/child_process.h"

namespace terrace::bench {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// All of one size; none of 2 MiB, but fio makes room for one, which gives each block a huge page
// to itself. Without it blocks of 64 KiB take half as long again.
std::string Blocks(uint32_t block_bytes) {
  return fmt::format("--bssplit={}/100:2m/0", block_bytes);
}

}  // namespace

absl::StatusOr<double> ParseFioBandwidth(std::string_view output, FioDirection direction) {
  const absl::Status strange =
      absl::UnavailableError(fmt::format("fio: not the output of one job: {}", output));
  const size_t begin = output.find('{');
  if (begin == std::string_view::npos) return strange;
  const auto parsed = nlohmann::json::parse(output.substr(begin), nullptr, false);
  const auto field = [](const nlohmann::json& object, const char* name) {
    return object.is_object() ? object.value(name, nlohmann::json()) : nlohmann::json();
  };
  const nlohmann::json jobs = field(parsed, "jobs");
  if (!jobs.is_array() || jobs.size() != 1) return strange;
  const nlohmann::json error = field(jobs[0], "error");
  const nlohmann::json bandwidth =
      field(field(jobs[0], direction == FioDirection::kRead ? "read" : "write"), "bw_bytes");
  if (!error.is_number_integer() || !bandwidth.is_number()) return strange;
  if (error.get<int>() != 0) {
    return absl::UnavailableError(
        fmt::format("fio: its job ended with error {}", error.get<int>()));
  }
  if (bandwidth.get<double>() <= 0) return absl::UnavailableError("fio: nothing was moved");
  return bandwidth.get<double>();
}

absl::StatusOr<std::unique_ptr<FioContender>> FioContender::Start(const std::string& folder,
                                                                  uint64_t file_bytes) {
  std::unique_ptr<FioContender> fio(new FioContender(folder, file_bytes));
  absl::Status last;
  for (const char* engine : {"io_uring", "libaio"}) {  // the first that works here
    fio->engine_ = engine;
    last = fio->Write(1 << 20, file_bytes, 16).status();
    if (last.ok()) return fio;
    if (absl::IsNotFound(last)) break;
  }
  return last;
}

absl::StatusOr<Measurement> FioContender::Write(uint32_t block_bytes, size_t bytes, int depth) {
  TERRACE_ASSIGN_OR_RETURN(
      const double speed,
      Run(FioDirection::kWrite,
          {"--rw=write", "--overwrite=1", "--end_fsync=1", Blocks(block_bytes),
           fmt::format("--size={}", bytes), fmt::format("--iodepth={}", depth)}));
  return Measurement{speed / 1e9, 0};
}

absl::StatusOr<Measurement> FioContender::Read(uint32_t block_bytes, size_t bytes, int depth) {
  TERRACE_ASSIGN_OR_RETURN(
      const double speed,
      Run(FioDirection::kRead,
          {"--rw=randread", "--norandommap", fmt::format("--randseed={}", ++seed_),
           Blocks(block_bytes), fmt::format("--size={}", file_bytes_),
           fmt::format("--io_size={}", bytes), fmt::format("--iodepth={}", depth)}));
  return Measurement{speed / 1e9, 0};
}

absl::StatusOr<double> FioContender::Run(FioDirection direction,
                                         const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {
      "fio",        "--name=limit",          "--filename=" + path_,
      "--direct=1", "--ioengine=" + engine_, "--output-format=json"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  // Its buffers on huge pages, as ours are: that alone makes it three times as fast.
  TERRACE_ASSIGN_OR_RETURN(ChildProcess process,
                           ChildProcess::Start(command, {"GLIBC_TUNABLES=glibc.malloc.hugetlb=1"}));
  const std::optional<int> code = process.Wait(kPatience);
  if (code != 0) {
    return absl::UnavailableError(fmt::format("fio ended with {}: {}{}",
                                              code ? std::to_string(*code) : "no code in time",
                                              process.errors(), process.output()));
  }
  return ParseFioBandwidth(process.output(), direction);
}

}  // namespace terrace::bench
