#include "tests/bench/ssd_rows.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "proto/status.h"

namespace terrace::bench {
namespace {

constexpr int kDepth = 16;
constexpr size_t kWorkingSetBytes = size_t{3} << 29;  // 1.5 GiB
constexpr uint64_t kBudgetBytes = uint64_t{9} << 28;  // the working set, and the catalogue
constexpr size_t kMemoryBytes = size_t{256} << 20;    // of sources, and of destinations
constexpr size_t kWriteBytes = size_t{256} << 20, kReadBytes = size_t{512} << 20;

struct SsdRow {
  const char* name;
  uint32_t block_bytes;
  bool write;
};
constexpr SsdRow kRows[] = {{"ssd_write_1MiB", 1 << 20, true},
                            {"ssd_read_1MiB", 1 << 20, false},
                            {"ssd_read_64KiB", 64 << 10, false}};

}  // namespace

std::vector<std::string> SsdRows::Names(const std::string& only) {
  std::vector<std::string> names;
  for (const SsdRow& row : kRows) {
    if (std::string(row.name).find(only) != std::string::npos) names.emplace_back(row.name);
  }
  return names;
}

SsdRows::SsdRows(SsdFolder folder)
    : folder_(std::move(folder)), sources_(kMemoryBytes), destinations_(kMemoryBytes) {
  std::mt19937_64 random(1);
  for (size_t at = 0; at < kMemoryBytes; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(sources_.all().data() + at, &word, sizeof(word));
  }
}

absl::StatusOr<std::unique_ptr<SsdRows>> SsdRows::Start(SsdFolder folder) {
  std::unique_ptr<SsdRows> rows(new SsdRows(std::move(folder)));
  const std::string& path = rows->folder_.path();
  TERRACE_ASSIGN_OR_RETURN(rows->fio_, FioContender::Start(path, kWorkingSetBytes));
  TERRACE_ASSIGN_OR_RETURN(
      rows->terrace_, ColdContender::Open(path + "/terrace", kBudgetBytes, rows->sources_.all(),
                                          &rows->destinations_));
  TERRACE_ASSIGN_OR_RETURN(rows->blobdb_,
                           BlobdbContender::Open(path + "/blobdb", rows->sources_.all()));
  return rows;
}

absl::StatusOr<RowResult> SsdRows::Run(const std::string& name, int rounds,
                                       const std::atomic<bool>* stop) {
  const SsdRow& wanted = *std::ranges::find(kRows, name, &SsdRow::name);
  const uint32_t block_bytes = wanted.block_bytes;
  const size_t blocks = kWorkingSetBytes / block_bytes;
  TERRACE_RETURN_IF_ERROR(terrace_->Fill(block_bytes, blocks));
  TERRACE_RETURN_IF_ERROR(blobdb_->Fill(block_bytes, wanted.write ? 0 : blocks));
  Row row{.name = name, .unit = "GB/s"};
  if (wanted.write) {
    TERRACE_RETURN_IF_ERROR(terrace_->Empty());
    row.terrace = {"terrace", [&] { return terrace_->Write(kWriteBytes, kDepth); }};
    row.limit = {"fio", [&] { return fio_->Write(block_bytes, kWriteBytes, kDepth); }};
    row.peer = Contender{"blobdb", [&] { return blobdb_->Write(kWriteBytes); }};
  } else {
    row.terrace = {"terrace", [&] { return terrace_->Read(kReadBytes, kDepth); }};
    row.limit = {"fio", [&] { return fio_->Read(block_bytes, kReadBytes, kDepth); }};
    row.peer = Contender{"blobdb", [&] { return blobdb_->Read(kReadBytes, kDepth); }};
  }
  row.bar = 0.8;
  row.peer_bar = 2.0;
  row.cpu_bar = 4.0;
  return RunRow(row, rounds, stop);
}

}  // namespace terrace::bench
