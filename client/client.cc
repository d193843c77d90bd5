#include "client/client.h"

#include <algorithm>
#include <map>

#include "client/client_parts.h"
#include "client/control_channel.h"
#include "client/copier.h"
#include "client/data_channel.h"
#include "client/get_task.h"
#include "client/local_memory.h"
#include "client/match_task.h"
#include "client/operation.h"
#include "client/persist_task.h"
#include "client/put_task.h"
#include "client/view_task.h"
#include "client/waiter.h"
#include "cluster/local_socket.h"
#include "cluster/network.h"
#include "cluster/socket_address.h"
#include "fmt/format.h"
#include "proto/clock.h"
#include "proto/mutex.h"
#include "proto/status.h"

namespace terrace {
namespace {

constexpr size_t kMaxChainBlocks = 16384;
// Frames of Touch that wait to be sent; what is touched past them is not counted as used.
constexpr int kMaxTouches = 64;

// Composes control channel, transport and data channel, and keeps them in step: a session that
// opens brings the namespaces back and then the data connection; one that is lost takes it down.
class ClientImpl : public Client, private SessionListener, private DataListener {
 public:
  ClientImpl(const ClientOptions& options, ClientParts parts)
      : options_(options),
        parts_(std::move(parts)),
        control_(parts_.control.get()),
        completions_(std::make_shared<CompletionQueue>()),
        gauge_(std::make_shared<OperationGauge>(options.max_operations)) {}
  ~ClientImpl() override;

  absl::Status Start();

  absl::StatusOr<Namespace> OpenNamespace(const NamespaceDefinition& definition) override;
  absl::Status RegisterMemory(MutableByteSpan memory) override {
    return transport_->Register(memory);
  }
  void UnregisterMemory(MutableByteSpan memory) override { transport_->Unregister(memory); }
  absl::StatusOr<MatchResult> Match(const Chain& chain, const MatchOptions& options) override;
  Operation Get(const Namespace& ns, std::vector<GetRequest> requests,
                OperationOptions options) override;
  Operation Put(const Namespace& ns, std::vector<PutRequest> requests,
                OperationOptions options) override;
  std::vector<BlockView> View(const Namespace& ns, std::span<const BlockKey> keys,
                              const ViewOptions& options) override;
  Operation Prefetch(const Chain& chain, size_t shard, size_t first_block,
                     std::vector<Pieces> slots, OperationOptions options) override;
  Operation Persist(const Namespace& ns, std::vector<BlockKey> keys,
                    OperationOptions options) override;
  void Touch(const Chain& chain, size_t blocks) override;
  int completion_fd() const override { return completions_->fd(); }
  size_t Poll(std::vector<Operation>* done, size_t limit) override {
    return completions_->Poll(done, limit);
  }
  ClientStats Stats() const override;

 private:
  struct OpenedNamespace {
    NamespaceDefinition definition;
    Namespace ns;
  };

  absl::Status OnSessionOpened(const SessionInfo& opened) override;
  void OnSessionEnding() override;
  void OnSessionLost(const absl::Status& why) override;
  void OnDataUp() override;
  void OnDataDown(const absl::Status& why) override;
  void OnTokenRefused() override { control_->Renew(); }

  absl::Status AwaitFirst(absl::Duration timeout);
  void SetFirst(absl::Status outcome);
  void ReopenNamespaces();
  // Of a node on this machine; null where bytes have to travel.
  std::shared_ptr<const LocalMemory> ShareMemory(const SessionInfo& session);
  bool local() const;
  std::shared_ptr<Operation::State> NewOperation(size_t requests, OperationOptions options);
  Operation Submit(std::shared_ptr<Operation::State> state, std::unique_ptr<Task> task);
  void ViewCopies(const Namespace& ns, std::span<const BlockKey> keys,
                  const std::vector<size_t>& wanted, absl::Duration timeout,
                  std::vector<BlockView>* views);
  Operation Overloaded(std::shared_ptr<Operation::State> state);

  const ClientOptions options_;
  const ClientParts parts_;  // make_transport holds what the transport stands on
  ControlChannel* const control_;
  const std::shared_ptr<CompletionQueue> completions_;
  const std::shared_ptr<OperationGauge> gauge_;
  DataChannel channel_{this};
  std::unique_ptr<Transport> transport_;  // its thread runs channel_
  std::unique_ptr<Copier> copier_;
  std::shared_ptr<IoHandle> io_;
  std::atomic<uint64_t> next_id_{1};
  std::atomic<uint64_t> namespace_epoch_{0};
  std::atomic<int> touches_{0};  // frames under way

  mutable Mutex mutex_;
  CondVar first_told_;
  // What became of the first attempt; empty until it is known.
  std::optional<absl::Status> first_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, OpenedNamespace> namespaces_ ABSL_GUARDED_BY(mutex_);
  bool local_ ABSL_GUARDED_BY(mutex_) = false;
  std::string local_reason_ ABSL_GUARDED_BY(mutex_);
};

// ---- Life ----

absl::Status ClientImpl::Start() {
  TERRACE_RETURN_IF_ERROR(completions_->Open());
  TERRACE_ASSIGN_OR_RETURN(transport_, parts_.make_transport(&channel_));
  copier_ = std::make_unique<Copier>(options_.local ? Copier::DefaultThreads() : 0);
  channel_.Attach(transport_.get(), copier_.get());
  io_ = std::make_shared<IoHandle>(transport_.get(), &channel_);
  control_->Start(this);
  return AwaitFirst(options_.connect_timeout);
}

ClientImpl::~ClientImpl() {
  constexpr absl::Duration kQuiet = absl::Milliseconds(500);
  if (transport_ == nullptr) return;
  // Behind everything posted so far, so that no operation is left without an end; before the
  // session goes, which would turn what is in flight into misses.
  Waiter<bool> ended;
  io_->Post([&ended](DataChannel& channel) {
    channel.CancelAll();
    ended.Finish(true);
  });
  ended.Wait();
  copier_.reset();  // what is being copied is in place, or called off
  control_->Stop();
  io_->Close();
  transport_->Shutdown(kQuiet);
}

absl::Status ClientImpl::AwaitFirst(absl::Duration timeout) {
  const absl::Duration until = Clock::Real()->Now() + timeout;
  MutexLock lock(&mutex_);
  while (!first_) {
    const absl::Duration left = until - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(fmt::format("no session with the node at {} within {}",
                                                     options_.address,
                                                     absl::FormatDuration(timeout)));
    }
    first_told_.WaitWithTimeout(&mutex_, left);
  }
  return *first_;
}

void ClientImpl::SetFirst(absl::Status outcome) {
  MutexLock lock(&mutex_);
  if (first_) return;
  first_ = std::move(outcome);
  first_told_.SignalAll();
}

absl::Status ClientImpl::OnSessionOpened(const SessionInfo& opened) {
  // The two do not understand each other, and a node's UCX does not survive what it does not
  // understand.
  if (!parts_.transport.empty() && !opened.transport.empty() &&
      parts_.transport != opened.transport) {
    return absl::FailedPreconditionError(
        fmt::format("the node's data travels by {}, this client's by {}: give both the same",
                    opened.transport, parts_.transport));
  }
  ReopenNamespaces();
  SessionInfo session = opened;
  for (std::string& address : session.data_addresses) {
    if (!parts_.resolve) break;
    TERRACE_ASSIGN_OR_RETURN(address, parts_.resolve(address));
  }
  session.memory = ShareMemory(session);
  io_->Post([session = std::move(session)](DataChannel& channel) { channel.OpenSession(session); });
  return absl::OkStatus();
}

std::shared_ptr<const LocalMemory> ClientImpl::ShareMemory(const SessionInfo& session) {
  constexpr absl::Duration kPatience = absl::Seconds(1);
  absl::StatusOr<std::shared_ptr<const LocalMemory>> memory =
      absl::UnavailableError("switched off here");
  if (options_.local && session.local_address.empty()) {
    memory = absl::UnavailableError("the node does not share its memory");
  } else if (options_.local && session.host_id != MachineId()) {
    memory = absl::UnavailableError("the node is on another machine");
  } else if (options_.local) {
    memory = LocalMemory::Open(session.local_address, session.token, kPatience);
  }
  MutexLock lock(&mutex_);
  local_reason_ = memory.ok() ? session.local_address : std::string(memory.status().message());
  local_ = memory.ok();
  return memory.ok() ? *memory : nullptr;
}

void ClientImpl::OnSessionEnding() {
  io_->Post([](DataChannel& channel) { channel.EndSession(); });
}

void ClientImpl::OnSessionLost(const absl::Status& why) {
  SetFirst(why);
  io_->Post([why](DataChannel& channel) { channel.LoseSession(why); });
}

void ClientImpl::OnDataUp() { SetFirst(absl::OkStatus()); }

void ClientImpl::OnDataDown(const absl::Status& why) {
  SetFirst(absl::UnavailableError(fmt::format("no data connection with the node at {}: {}",
                                              options_.address, std::string(why.message()))));
}

// ---- Namespaces ----

absl::StatusOr<Namespace> ClientImpl::OpenNamespace(const NamespaceDefinition& definition) {
  const LayoutDefinition& layout = definition.layout;
  TERRACE_RETURN_IF_ERROR(Validate(BlockShape{layout.block_bytes, layout.segments}));
  TERRACE_ASSIGN_OR_RETURN(Namespace ns,
                           control_->OpenNamespace(definition, options_.connect_timeout));
  MutexLock lock(&mutex_);
  namespaces_[definition.name] = {definition, ns};
  return ns;
}

// A node that restarted may have forgotten them. One that cannot be opened now is left as it is:
// its blocks are refused until somebody opens it.
void ClientImpl::ReopenNamespaces() {
  std::map<std::string, OpenedNamespace> opened;
  {
    MutexLock lock(&mutex_);
    opened = namespaces_;
  }
  for (auto& [name, known] : opened) {
    absl::StatusOr<Namespace> now =
        control_->OpenNamespace(known.definition, options_.connect_timeout);
    if (!now.ok() || (now->id == known.ns.id && now->secret == known.ns.secret)) continue;
    namespace_epoch_.fetch_add(1, std::memory_order_relaxed);
    MutexLock lock(&mutex_);
    namespaces_[name].ns = *now;
  }
}

// ---- Operations ----

std::shared_ptr<Operation::State> ClientImpl::NewOperation(size_t requests,
                                                           OperationOptions options) {
  const bool admitted = gauge_->Enter();
  if (!admitted) options.notify = false;  // what waits to be polled is bounded
  auto state = std::make_shared<Operation::State>(next_id_.fetch_add(1, std::memory_order_relaxed),
                                                  requests, std::move(options));
  state->io = io_;
  state->completions = completions_;
  if (admitted) state->gauge = gauge_;
  return state;
}

Operation ClientImpl::Submit(std::shared_ptr<Operation::State> state, std::unique_ptr<Task> task) {
  io_->Post(
      [task = std::move(task)](DataChannel& channel) mutable { channel.Start(std::move(task)); });
  return Operation(std::move(state));
}

Operation ClientImpl::Overloaded(std::shared_ptr<Operation::State> state) {
  for (size_t i = 0; i < state->results.size(); ++i) state->SetOutcome(i, Outcome::kOverloaded);
  if (!state->options.callback) {
    state->Finish();
    return Operation(std::move(state));
  }
  io_->Post([state](DataChannel&) { state->Finish(); });  // callbacks run on the I/O thread
  return Operation(std::move(state));
}

Operation ClientImpl::Get(const Namespace& ns, std::vector<GetRequest> requests,
                          OperationOptions options) {
  const absl::Duration deadline = Clock::Real()->Now() + options.timeout;
  auto state = NewOperation(requests.size(), std::move(options));
  if (state->gauge == nullptr) return Overloaded(std::move(state));
  auto task =
      std::make_unique<GetTask>(ns, GetTask::Mode::kEach, std::move(requests), state, deadline);
  return Submit(std::move(state), std::move(task));
}

Operation ClientImpl::Put(const Namespace& ns, std::vector<PutRequest> requests,
                          OperationOptions options) {
  const absl::Duration deadline = Clock::Real()->Now() + options.timeout;
  auto state = NewOperation(requests.size(), std::move(options));
  if (state->gauge == nullptr) return Overloaded(std::move(state));
  auto task = std::make_unique<PutTask>(ns, std::move(requests), state, deadline);
  return Submit(std::move(state), std::move(task));
}

std::vector<BlockView> ClientImpl::View(const Namespace& ns, std::span<const BlockKey> keys,
                                        const ViewOptions& options) {
  const absl::Duration deadline = Clock::Real()->Now() + options.timeout;
  std::vector<BlockView> views(keys.size());
  std::vector<size_t> copies;
  if (!channel_.up()) return views;
  if (local()) {
    Waiter<std::vector<LeasedPlace>> waiter;
    auto task = std::make_unique<ViewTask>(next_id_.fetch_add(1, std::memory_order_relaxed), ns.id,
                                           keys, options.lease, io_, &waiter, deadline);
    io_->Post(
        [task = std::move(task)](DataChannel& channel) mutable { channel.Start(std::move(task)); });
    const std::vector<LeasedPlace> places = waiter.Wait();
    for (size_t i = 0; i < keys.size(); ++i) {
      const bool leased = places[i].status == WireStatus::kOk;
      if (leased) views[i] = BlockViewMaker::InPlace(ns, keys[i], places[i]);
      if (leased ? !views[i] : places[i].status == WireStatus::kOverloaded) copies.push_back(i);
    }
  } else {
    for (size_t i = 0; i < keys.size(); ++i) copies.push_back(i);
  }
  if (!copies.empty()) ViewCopies(ns, keys, copies, deadline - Clock::Real()->Now(), &views);
  return views;
}

void ClientImpl::ViewCopies(const Namespace& ns, std::span<const BlockKey> keys,
                            const std::vector<size_t>& wanted, absl::Duration timeout,
                            std::vector<BlockView>* views) {
  std::vector<std::vector<std::byte>> copies;
  std::vector<GetRequest> requests;
  for (const size_t i : wanted) {
    copies.emplace_back(ns.shape.length);
    requests.push_back({.key = keys[i], .destination = {}});
  }
  for (size_t j = 0; j < copies.size(); ++j) requests[j].destination = {MutableByteSpan(copies[j])};
  const Operation get = Get(ns, std::move(requests), {.timeout = timeout});
  get.Wait();
  for (size_t j = 0; j < copies.size(); ++j) {
    const BlockResult& result = get.results()[j];
    if (result.outcome != Outcome::kOk) continue;
    (*views)[wanted[j]] = BlockViewMaker::Owned(ns, std::move(copies[j]), result);
  }
}

bool ClientImpl::local() const {
  MutexLock lock(&mutex_);
  return local_;
}

Operation ClientImpl::Prefetch(const Chain& chain, size_t shard, size_t first_block,
                               std::vector<Pieces> slots, OperationOptions options) {
  const absl::Duration deadline = Clock::Real()->Now() + options.timeout;
  const bool inside = shard < chain.shards().size() && first_block <= chain.blocks();
  const size_t known = inside ? chain.blocks() - first_block : 0;
  std::vector<GetRequest> requests(std::min(slots.size(), known));
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].key = chain.key(first_block + i, shard);
    requests[i].destination = std::move(slots[i]);
  }
  auto state = NewOperation(slots.size(), std::move(options));
  if (state->gauge == nullptr) return Overloaded(std::move(state));
  for (size_t i = requests.size(); i < slots.size(); ++i) {
    state->SetOutcome(i, Outcome::kInvalid);
    state->results[i].message = "the chain has no such block or shard";
  }
  auto task = std::make_unique<GetTask>(chain.ns(), GetTask::Mode::kLeadingRun, std::move(requests),
                                        state, deadline);
  return Submit(std::move(state), std::move(task));
}

Operation ClientImpl::Persist(const Namespace& ns, std::vector<BlockKey> keys,
                              OperationOptions options) {
  const absl::Duration deadline = Clock::Real()->Now() + options.timeout;
  auto state = NewOperation(keys.size(), std::move(options));
  if (state->gauge == nullptr) return Overloaded(std::move(state));
  auto task = std::make_unique<PersistTask>(ns, std::move(keys), state, deadline);
  return Submit(std::move(state), std::move(task));
}

absl::StatusOr<MatchResult> ClientImpl::Match(const Chain& chain, const MatchOptions& options) {
  if (chain.blocks() > kMaxChainBlocks) {
    return absl::InvalidArgumentError(
        fmt::format("the chain has {} blocks, {} can be matched", chain.blocks(), kMaxChainBlocks));
  }
  if (!channel_.up()) return MatchResult{.ask_again = true};
  Waiter<MatchResult> waiter;
  auto task =
      std::make_unique<MatchTask>(next_id_.fetch_add(1, std::memory_order_relaxed), &chain, options,
                                  io_, &waiter, Clock::Real()->Now() + options.timeout);
  io_->Post(
      [task = std::move(task)](DataChannel& channel) mutable { channel.Start(std::move(task)); });
  return waiter.Wait();
}

void ClientImpl::Touch(const Chain& chain, size_t blocks) {
  blocks = std::min(blocks, chain.blocks());
  for (size_t shard = 0; shard < chain.shards().size(); ++shard) {
    for (size_t begin = 0; begin < blocks; begin += kMaxKeysPerFrame) {
      std::vector<WireKey> keys;
      for (size_t i = begin; i < std::min(blocks, begin + kMaxKeysPerFrame); ++i) {
        const BlockKey key = chain.key(i, shard);
        keys.push_back({key.digest, key.shard});
      }
      if (touches_.fetch_add(1) >= kMaxTouches) {
        touches_.fetch_sub(1);
        return;
      }
      io_->Post([this, id = chain.ns().id, keys = std::move(keys)](DataChannel& channel) mutable {
        channel.Touch(id, std::move(keys), [this] { touches_.fetch_sub(1); });
      });
    }
  }
}

ClientStats ClientImpl::Stats() const {
  const ChannelCounters& counters = channel_.counters();
  ClientStats stats;
  stats.transport = transport_->Stats().profile;
  stats.connected = channel_.up();
  stats.reconnects = counters.reconnects;
  stats.gets = counters.gets;
  stats.get_bytes = counters.get_bytes;
  stats.puts = counters.puts;
  stats.put_bytes = counters.put_bytes;
  stats.misses = counters.misses;
  stats.corrupt = counters.corrupt;
  stats.timeouts = counters.timeouts;
  stats.operations_in_flight = gauge_->count();
  stats.namespace_epoch = namespace_epoch_;
  stats.local_bytes = counters.local_bytes;
  MutexLock lock(&mutex_);
  stats.local = local_;
  stats.local_reason = local_reason_;
  return stats;
}

// ---- The network ----

// One per process and kind, as long as a client uses it: UCX's context is dear.
absl::StatusOr<std::shared_ptr<Network>> SharedNetwork(const std::string& transport) {
  static Mutex mutex;
  static std::map<std::string, std::weak_ptr<Network>> networks;
  MutexLock lock(&mutex);
  if (std::shared_ptr<Network> network = networks[transport].lock()) return network;
  TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<Network> network, Network::Create(transport));
  networks[transport] = network;
  return network;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> ConnectWith(const ClientOptions& options,
                                                    ClientParts parts) {
  auto client = std::make_unique<ClientImpl>(options, std::move(parts));
  TERRACE_RETURN_IF_ERROR(client->Start());
  return client;
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<Network> network, SharedNetwork(options.transport));
  ClientParts parts;
  TERRACE_ASSIGN_OR_RETURN(parts.control, CreateControlChannel(options));
  parts.transport = network->name();
  parts.make_transport = [network](TransportHandler* handler) {
    return network->MakeTransport({.thread_name = "terrace-client"}, handler);
  };
  parts.resolve = [](const std::string& address) -> absl::StatusOr<std::string> {
    TERRACE_ASSIGN_OR_RETURN(const SocketAddress socket,
                             ParseSocketAddress(address, /*numeric_only=*/false));
    return FormatSocketAddress(socket.storage);
  };
  return ConnectWith(options, std::move(parts));
}

}  // namespace terrace
