#include "tests/bench/cold_contender.h"

#include <algorithm>
#include <random>

#include "proto/checksum.h"
#include "proto/envelope.h"
#include "proto/mutex.h"
#include "proto/status.h"
#include "tests/bench/own_round.h"
#include "tests/bench/pump.h"

namespace terrace::bench {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr int kFillDepth = 16;
constexpr uint32_t kSegmentBytes = 64 << 10;  // a layer's part of a block
constexpr uint64_t kExtentBytes = 256 << 20;

BlockKey KeyOf(uint64_t number) {
  BlockKey key{NamespaceId{1}};
  // The index expects digests to be spread evenly.
  key.digest = Sha256(std::as_bytes(std::span(&number, 1)));
  return key;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ColdContender>> ColdContender::Open(const std::string& path,
                                                                   uint64_t budget_bytes,
                                                                   ByteSpan sources,
                                                                   ColdArena* destinations) {
  std::vector<ColdFolderOptions> folders(1);
  folders[0].path = path;
  folders[0].budget_bytes = budget_bytes;
  folders[0].extent_bytes = kExtentBytes;
  folders[0].cluster = folders[0].node = "bench";
  TERRACE_ASSIGN_OR_RETURN(auto store, ColdStore::Open(std::move(folders)));
  TERRACE_RETURN_IF_ERROR(store->WaitUntilLoaded(kPatience));
  // Extents are added between commits: all are there after the second.
  for (int i = 0; i < 2; ++i) TERRACE_RETURN_IF_ERROR(store->WaitForCommit(kPatience));
  return std::unique_ptr<ColdContender>(new ColdContender(std::move(store), sources, destinations));
}

ColdContender::ColdContender(std::unique_ptr<ColdStore> store, ByteSpan sources,
                             ColdArena* destinations)
    : store_(std::move(store)), sources_(sources), destinations_(destinations) {}

void ColdContender::CutSources(uint32_t block_bytes) {
  block_bytes_ = block_bytes;
  checksums_.clear();
  for (size_t at = 0; at + block_bytes <= sources_.size(); at += block_bytes) {
    std::vector<uint32_t>& checksums = checksums_.emplace_back();
    for (uint32_t part = 0; part < block_bytes; part += kSegmentBytes) {
      checksums.push_back(Crc32c(sources_.subspan(at + part, kSegmentBytes)));
    }
  }
}

std::vector<ColdContender::Block> ColdContender::NewBlocks(size_t count) {
  std::vector<Block> blocks(count);
  for (Block& block : blocks) {
    const size_t piece = next_ % checksums_.size();
    block.key = KeyOf(next_++);
    block.value = sources_.subspan(piece * block_bytes_, block_bytes_);
    const Envelope content{.key = block.key,
                           .generation = next_,
                           .shape = {block_bytes_, block_bytes_ / kSegmentBytes},
                           .metadata = {},
                           .checksums = checksums_[piece]};
    block.envelope.resize(EnvelopeBytes(content.shape.segments, 0));
    content.EncodeTo(block.envelope);
  }
  return blocks;
}

absl::Status ColdContender::WriteAll(const std::vector<Block>& blocks, int depth) {
  Pump pump(blocks.size(), [&](size_t i, Pump::Done done) {
    std::vector<ColdPut> puts(1);
    puts[0].key = blocks[i].key;
    puts[0].envelope = blocks[i].envelope;
    puts[0].value = blocks[i].value;
    puts[0].done = done;
    store_->Put(std::move(puts));
  });
  TERRACE_RETURN_IF_ERROR(pump.Run(depth));
  return store_->WaitForCommit(kPatience);
}

absl::Status ColdContender::Delete(std::vector<BlockKey>* keys) {
  TERRACE_RETURN_IF_ERROR(store_->Delete(*keys, ColdLeave::kEvicted));
  keys->clear();
  return store_->WaitForCommit(kPatience);  // their slots are free only then
}

absl::Status ColdContender::Empty() {
  TERRACE_RETURN_IF_ERROR(Delete(&written_));
  return Delete(&filled_);
}

absl::Status ColdContender::Fill(uint32_t block_bytes, size_t blocks) {
  TERRACE_RETURN_IF_ERROR(Empty());
  CutSources(block_bytes);
  const std::vector<Block> fresh = NewBlocks(blocks);
  for (const Block& block : fresh) filled_.push_back(block.key);
  return WriteAll(fresh, kFillDepth);
}

absl::StatusOr<Measurement> ColdContender::Write(size_t bytes, int depth) {
  TERRACE_RETURN_IF_ERROR(Delete(&written_));
  const std::vector<Block> blocks = NewBlocks(bytes / block_bytes_);
  for (const Block& block : blocks) written_.push_back(block.key);
  const OwnRound round;
  TERRACE_RETURN_IF_ERROR(WriteAll(blocks, depth));
  return round.Ended(bytes);
}

// Into as many buffers as there are reads in flight, over and over, as fio does: so that both write
// memory that caches may hold.
absl::StatusOr<Measurement> ColdContender::Read(size_t bytes, int depth) {
  struct Target {
    BlockKey key;
    MutableByteSpan value;
    std::vector<std::byte> envelope;
  };
  std::mt19937_64 random(++seed_);
  std::vector<Target> targets(bytes / block_bytes_);
  for (Target& target : targets) target.key = filled_[random() % filled_.size()];
  Mutex mutex;
  std::vector<MutableByteSpan> free;
  for (int i = 0; i < depth; ++i) free.push_back(destinations_->Next(block_bytes_));
  Pump pump(targets.size(), [&](size_t i, Pump::Done done) {
    Target& target = targets[i];
    ColdBlock found;
    store_->Find({&target.key, 1}, {&found, 1});
    if (found.presence != Presence::kHere) return done(absl::NotFoundError("a block is gone"));
    {
      MutexLock lock(&mutex);
      target.value = free.back();
      free.pop_back();
    }
    target.envelope.resize(found.envelope_bytes);
    std::vector<ColdGet> gets(1);
    gets[0].key = target.key;
    gets[0].envelope = target.envelope;
    gets[0].value = target.value;
    gets[0].done = [&, done](const absl::Status& status) {
      {
        MutexLock lock(&mutex);
        free.push_back(target.value);
      }
      done(status);
    };
    store_->Get(std::move(gets));
  });
  const OwnRound round;
  TERRACE_RETURN_IF_ERROR(pump.Run(depth));
  return round.Ended(bytes);
}

}  // namespace terrace::bench
