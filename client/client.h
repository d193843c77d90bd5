// The client library: what an inference worker links.
//
//   auto client = terrace::Client::Connect({.address = "127.0.0.1:7470"});
//   auto ns = (*client)->OpenNamespace({.name = "llama", .layout = ...});
//   auto chain = terrace::Chain::FromTokens(*ns, tokens);
//   auto match = (*client)->Match(*chain);              // match->blocks: leading hits
//   std::vector<terrace::GetRequest> gets = ...;        // key + where its bytes go
//   terrace::Operation op = (*client)->Get(*ns, std::move(gets), options);
//   op.Wait();                                          // bounded by options.timeout
//   for (const terrace::BlockResult& r : op.results())
//     if (r.outcome == terrace::Outcome::kOk) ...
//
// docs/client.md has a whole program. C++20.
//
// Rules that hold everywhere:
// - A miss is an outcome, not an error. An unreachable node is a miss.
// - kOk means: every byte asked for is in place, and was verified against the checksum that its
//   writer computed, and the envelope carries the key, the namespace and the layout asked for.
//   With any other outcome the destination's content is undefined.
// - Memory given to an operation stays valid and untouched until the operation is done; when it
//   is done, nobody reads or writes it any more. That also holds after a timeout or Cancel: the
//   operation is done only when the transport is quiet (at most 150 ms after the deadline).
// - Every call is bounded by its timeout. No call throws.
// - All methods are thread-safe. Callbacks run on the client's I/O thread and must not block.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/block_view.h"
#include "client/chain.h"
#include "proto/block.h"
#include "proto/block_key.h"
#include "proto/bytes.h"

namespace terrace {

struct ClientOptions {
  std::string address{};     // of the node's control plane, "host:port"
  std::string name{};        // for people; default: program name and host
  std::string token_file{};  // bearer token; empty: none
  // TLS: `ca_file` switches it on; the pair is for mTLS.
  std::string ca_file{}, cert_file{}, key_file{};
  std::string transport = "auto";  // "auto", "tcp", "rdma"
  // Read blocks from the memory of a node on the same machine, where it can be reached; else, and
  // with `false`, their bytes travel.
  bool local = true;
  absl::Duration connect_timeout = absl::Seconds(5);
  // Operations at most that wait for the node, or (with `notify`) to be polled; past it they end
  // at once with kOverloaded: the handle returned is done, and is not reported to Poll.
  uint32_t max_operations = 1024;
};

// How the engine lays a block out; every field must agree between those who share.
struct LayoutDefinition {
  std::string model{};
  std::string kv_dtype = "bf16";
  std::string format = "layer-first NHD";
  uint32_t block_tokens = 0;
  uint32_t layers = 0, kv_heads = 0, head_dim = 0;
  uint32_t shards = 1;
  std::string cache_group{}, salt{};
  std::map<std::string, std::string> extra{};
  uint32_t block_bytes = 0;
  uint32_t segments = 1;
};

struct NamespaceDefinition {
  std::string name{};
  LayoutDefinition layout{};
  std::string hash_algorithm = "sha256";
  std::string hash_seed_fingerprint{};
  bool create = true;  // where it does not exist
};

enum class Outcome : uint8_t {
  kOk,          // Get: bytes in place and verified. Put: published, or there already
  kMiss,        // Get: not there, or could not be read. Get and Put: the node cannot be reached
  kAskAgain,    // Get: the node is loading its ssd tier and does not know yet; try again soon
  kNoSpace,     // Put: nothing can be evicted now
  kNotDurable,  // Persist: the node has the block, and cannot make it durable
  kCorrupt,     // bytes or envelope failed the check (counted); as good as a miss
  kInvalid,     // shape, range or sizes of the request; `message` says which
  kRefused,     // namespace unknown or foreign to the node
  kOverloaded,  // a bound of client or node is reached; try later
  kTimeout,     // the deadline passed first
  kCancelled,
};
const char* ToString(Outcome outcome);

struct BlockResult {
  Outcome outcome = Outcome::kMiss;
  bool existed = false;     // Put: the node had the block, or somebody else was writing it
  Tier tier = Tier::kNone;  // Prefetch: where it was found, before it was read
  uint64_t generation = 0;  // Get, kOk
  BlockMetadata metadata;   // Get, kOk
  std::string message;      // kInvalid, kRefused, kCorrupt
};

// Where a block's bytes are or go: the pieces in order, sizes adding up to the range's length.
using Pieces = absl::InlinedVector<MutableByteSpan, 1>;
using ConstPieces = absl::InlinedVector<ByteSpan, 1>;

struct GetRequest {
  BlockKey key{};
  Pieces destination{};
  // A range of whole segments, each verified on its own; 0, 0 is the whole block.
  uint16_t first_segment = 0;
  uint16_t segment_count = 0;
};

struct PutRequest {
  BlockKey key{};
  ConstPieces source{};  // the whole block
  BlockMetadata metadata{};
};

class Operation;

struct OperationOptions {
  absl::Duration timeout = absl::Seconds(1);
  // Called once when done, on the I/O thread; must neither block nor Cancel. May be empty.
  std::function<void(Operation)> callback{};
  // Reported through Client::completion_fd() and Client::Poll().
  bool notify = false;
};

// A batch in progress: a shared handle, cheap to copy. Dropping all handles does not cancel.
class Operation {
 public:
  struct State;

  Operation() = default;
  explicit Operation(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool done() const;
  // Blocks until done; bounded by the operation's own timeout (plus 150 ms to become quiet).
  void Wait() const;
  // One per request, in order; stable once done() is true.
  std::span<const BlockResult> results() const;
  // Requests whose outcome is kOk so far.
  size_t succeeded() const;
  // Gives up what has not finished; blocks until quiet (at most 150 ms) and returns how many
  // requests had succeeded. Harmless when done.
  size_t Cancel() const;
  uint64_t id() const;

 private:
  std::shared_ptr<State> state_;
};

// A promise that matched blocks which were in host memory stay readable; releases on destruction
// or when it expires. Blocks on ssd are not held: one may be a miss when it is read, as without a
// lease. Releasing never fails and twice is harmless.
class Lease {
 public:
  Lease() = default;
  Lease(std::function<void()> release, absl::Duration duration)
      : release_(std::move(release)), duration_(duration) {}
  Lease(Lease&& other) noexcept
      : release_(std::exchange(other.release_, nullptr)), duration_(other.duration_) {}
  Lease& operator=(Lease&& other) noexcept {
    Release();
    release_ = std::exchange(other.release_, nullptr);
    duration_ = other.duration_;
    return *this;
  }
  ~Lease() { Release(); }
  explicit operator bool() const { return release_ != nullptr; }
  absl::Duration duration() const { return duration_; }
  void Release() {
    if (auto release = std::exchange(release_, nullptr)) release();
  }

 private:
  std::function<void()> release_;
  absl::Duration duration_ = absl::ZeroDuration();
};

struct MatchOptions {
  absl::Duration timeout = absl::Milliseconds(100);
  absl::Duration lease = absl::ZeroDuration();  // zero: none; capped by the node
  // Counts one use of each matched block. Off for a mere probe, which changes nothing.
  bool count_use = true;
};

struct MatchResult {
  size_t blocks = 0;        // leading blocks present in every shard of the chain, in any tier
  std::vector<Tier> tiers;  // one per block, at the time of the answer: the slowest over its shards
  // The answer may be longer in a moment: the node is loading its ssd tier after a start, is at a
  // bound, is stopping, or is unreachable.
  bool ask_again = false;
  // Covers those of `blocks` that were in host memory (tiers[i] == Tier::kHost: in every shard).
  // Empty unless asked for and granted: a node leases half of its host tier at most, to all its
  // clients together.
  Lease lease;
};

struct ViewOptions {
  absl::Duration timeout = absl::Seconds(1);
  absl::Duration lease = absl::Seconds(10);  // how long blocks are to stay; capped by the node
};

struct ClientStats {
  std::string transport;
  bool connected = false;
  bool local = false;        // blocks are read from the node's memory
  std::string local_reason;  // why, or why not
  uint64_t local_bytes = 0;  // of get_bytes
  uint64_t reconnects = 0;
  uint64_t gets = 0, get_bytes = 0, puts = 0, put_bytes = 0;
  uint64_t misses = 0, corrupt = 0, timeouts = 0, operations_in_flight = 0;
  // Grows when a reconnect finds a namespace with another id or secret: the node had forgotten
  // it. Namespaces and chains from before are refused from then on (Get and Put: kRefused,
  // Match: 0 blocks); open the namespace again and build chains anew.
  uint64_t namespace_epoch = 0;
};

class Client {
 public:
  // Blocks until a session and a data connection are up. Unavailable names the address;
  // Unauthenticated, DeadlineExceeded; InvalidArgument names a file or option. After this the
  // client reconnects by itself and opens its namespaces again; meanwhile operations end at once
  // as misses.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  // Ends what is in flight (kCancelled), then returns; at most one second.
  virtual ~Client() = default;

  // Blocks, at most ClientOptions::connect_timeout. FailedPrecondition names each field that
  // differs from the existing definition; NotFound; Unavailable, DeadlineExceeded.
  virtual absl::StatusOr<Namespace> OpenNamespace(const NamespaceDefinition& definition) = 0;

  // Optional: lets RDMA reach the memory without a copy. The memory outlives its registration.
  virtual absl::Status RegisterMemory(MutableByteSpan memory) = 0;
  virtual void UnregisterMemory(MutableByteSpan memory) = 0;

  // Longest prefix of `chain` that is there. Blocks until the answer or the timeout; an
  // unreachable or silent node is 0 blocks with ask_again. InvalidArgument: more than 16,384
  // blocks. Keys travel in frames of at most kMaxKeysPerFrame.
  virtual absl::StatusOr<MatchResult> Match(const Chain& chain,
                                            const MatchOptions& options = {}) = 0;

  // Do not block. Any number of requests; all of the namespace `ns`. A request that is wrong in
  // itself ends with kInvalid and disturbs no other.
  virtual Operation Get(const Namespace& ns, std::vector<GetRequest> requests,
                        OperationOptions options = {}) = 0;
  virtual Operation Put(const Namespace& ns, std::vector<PutRequest> requests,
                        OperationOptions options = {}) = 0;
  // Blocks to be read where they lie, in the memory of a node on this machine; where there is none,
  // or it lends nothing now, views of copies. One view per key, empty for a block that is not
  // there. Blocks until they are there and verified, or the timeout.
  virtual std::vector<BlockView> View(const Namespace& ns, std::span<const BlockKey> keys,
                                      const ViewOptions& options = {}) = 0;

  // Brings the leading run of a chain's shard into `slots` (slot i holds block first_block + i).
  // The first block that is not there ends the run, with kMiss or with kAskAgain: what is behind it
  // ends with kMiss, untried.
  virtual Operation Prefetch(const Chain& chain, size_t shard, size_t first_block,
                             std::vector<Pieces> slots, OperationOptions options = {}) = 0;

  // Asks for the acknowledgement `durable` of blocks that are there: kOk when a block survives a
  // kill of the node and a power cut, which takes up to its group commit of 100 ms. kMiss: not
  // there. kNotDurable: the node has no ssd tier, or it fails. kAskAgain: the block is on its way
  // between the tiers, or the ssd tier is full or loading; try again soon.
  virtual Operation Persist(const Namespace& ns, std::vector<BlockKey> keys,
                            OperationOptions options = {}) = 0;

  // Counts one use of the first `blocks` blocks of `chain`, which the engine found in its own
  // cache. Fire and forget.
  virtual void Touch(const Chain& chain, size_t blocks) = 0;

  // Readable while operations with `notify` have completed and were not polled. Owned by the
  // client. Poll moves up to `limit` of them to `done`; never blocks.
  virtual int completion_fd() const = 0;
  virtual size_t Poll(std::vector<Operation>* done, size_t limit) = 0;

  virtual ClientStats Stats() const = 0;
};

}  // namespace terrace
