// Get and Prefetch: asks for blocks, lands each straight in its destination (or copies it there
// from the memory of a node on this machine), and believes nothing before it has checked it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/local_memory.h"
#include "client/operation.h"
#include "client/task.h"
#include "proto/checksum.h"
#include "proto/envelope.h"

namespace terrace {

class GetTask : public Task {
 public:
  enum class Mode {
    kEach,        // every request on its own
    kLeadingRun,  // the requests are a chain's blocks in order; the first miss ends the run
  };

  // Judges each request against `ns`; those that are wrong in themselves end at once.
  GetTask(const Namespace& ns, Mode mode, std::vector<GetRequest> requests,
          std::shared_ptr<Operation::State> state, absl::Duration deadline);

  Turn SendRequest(DataChannel& channel) override;
  absl::Status OnReply(DataChannel& channel, uint64_t request, FrameBody& reply,
                       uint64_t payload_bytes, Landing* landing) override;
  void Abandon(DataChannel& channel, Outcome why) override;
  bool finished() const override { return open_ == 0; }
  void Complete(DataChannel& channel) override;

 private:
  struct Item {
    uint32_t index;  // in requests_ and in the results
    enum { kQueued, kAsked, kLanding, kFinal } state = kQueued;
  };
  // A frame under way, and what it asks for.
  struct Batch {
    std::vector<uint32_t> positions;  // in items_
    uint32_t open;                    // of them, those not yet answered for
  };
  // A lease on the places of some blocks, until the last one has been read.
  struct Loan {
    uint64_t session, lease;
    uint32_t open;
  };
  // A block's bytes on their way into place.
  struct Arrival {
    std::vector<uint32_t> expected;  // checksums of the segments asked for
    std::vector<uint32_t> computed;
    std::optional<SegmentChecksummer> checksummer;
    uint64_t generation;
    BlockMetadata metadata;
  };
  // A block being copied from the node's memory.
  struct LocalCopy : Arrival {
    explicit LocalCopy(Arrival&& arrival) : Arrival(std::move(arrival)) {}
    std::shared_ptr<const LocalMemory> memory;
    ByteSpan source, envelope;  // in memory
    Pieces destination;
    std::shared_ptr<std::atomic<bool>> called_off;
    bool whole = false;  // it was not called off

    void Run();
    bool stale() const { return LoadGeneration(envelope) != generation; }
  };

  absl::Status Validate(const GetRequest& request) const;
  BlockShape RangeOf(const GetRequest& request) const;
  Turn AskForBytes(DataChannel& channel);
  Turn AskForPlaces(DataChannel& channel);
  std::vector<uint32_t> NextPositions(const DataChannel& channel, uint64_t most, uint64_t* bytes);
  void Ask(DataChannel& channel, std::vector<uint32_t> positions, uint64_t bytes, FrameBody frame);
  Turn AskForRun(DataChannel& channel);
  absl::Status OnRun(DataChannel& channel, const MatchReplyFrame& reply);
  absl::Status OnBlock(DataChannel& channel, uint64_t request, BlockFrame& block,
                       uint64_t payload_bytes, Landing* landing);
  absl::Status OnLent(DataChannel& channel, uint64_t request, const LentFrame& lent);
  absl::Status OnPlace(DataChannel& channel, uint64_t request, const LentFrame::Item& item,
                       const std::shared_ptr<Loan>& loan, bool alone);
  void CopyOut(DataChannel& channel, uint64_t request, uint32_t position,
               std::shared_ptr<LocalCopy> copy, const std::shared_ptr<Loan>& loan, bool alone);
  void OnCopied(DataChannel& channel, uint64_t request, uint32_t position, LocalCopy& copy);
  static void EndOfLoan(DataChannel& channel, Loan* loan);
  void AskAgain(DataChannel& channel, uint64_t request, uint32_t position);
  void GiveBack(DataChannel& channel, uint64_t request, uint32_t position);
  Arrival Expect(uint32_t position, const EnvelopeView& envelope) const;
  absl::Status Judge(const GetRequest& request, const EnvelopeView& envelope,
                     uint64_t payload_bytes) const;
  Landing Land(DataChannel& channel, uint64_t request, uint32_t position,
               const EnvelopeView& envelope);
  void OnLanded(DataChannel& channel, uint64_t request, uint32_t position, Arrival& arrival,
                const absl::Status& status);
  void EndItem(DataChannel& channel, uint64_t request, uint32_t position, Outcome outcome,
               std::string message = {});
  void SetFinal(DataChannel& channel, uint32_t position, Outcome outcome, std::string message);

  const Namespace ns_;
  const Mode mode_;
  std::vector<GetRequest> requests_;
  const std::shared_ptr<Operation::State> state_;
  std::vector<Item> items_;   // the valid requests, in order
  uint32_t open_ = 0;         // of items_, not final
  uint32_t next_ = 0;         // first of items_ not asked for
  uint32_t allowed_ = 0;      // items_ before it are known to be there (kLeadingRun) or all
  uint64_t run_request_ = 0;  // the Match under way, of items_ from allowed_ on
  uint32_t run_asked_ = 0;    // how many it names
  std::vector<uint64_t> leases_;
  std::vector<uint32_t> again_;  // of items_: no place is lent, so that their bytes are asked for
  const std::shared_ptr<std::atomic<bool>> called_off_ = std::make_shared<std::atomic<bool>>(false);
  absl::flat_hash_map<uint64_t, Batch> batches_;
  Outcome why_ = Outcome::kMiss;  // of what the connection's end leaves unfinished
};

}  // namespace terrace
