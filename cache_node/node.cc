#include "cache_node/node.h"

#include <unistd.h>

#include <atomic>

#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cache_node/address.h"
#include "cache_node/background_loop.h"
#include "cache_node/control_server.h"
#include "cache_node/data_service.h"
#include "cache_node/folder_info.h"
#include "cache_node/http_service.h"
#include "cache_node/local_service.h"
#include "cache_node/ports.h"
#include "cache_node/security.h"
#include "cache_node/ssd_folders.h"
#include "cache_node/tier_metrics.h"
#include "cluster/local_socket.h"
#include "cluster/network.h"
#include "cluster/ucx_transport.h"
#include "fmt/format.h"
#include "proto/log.h"
#include "proto/status.h"
#include "proto/units.h"
#include "proto/version.h"

namespace terrace {
namespace {

constexpr absl::Duration kHeartbeat = absl::Seconds(1);
// Of the time to stop, what the ends of streams and connections may take, each.
constexpr absl::Duration kEndOfStreams = absl::Milliseconds(500);
constexpr absl::Duration kEndOfTransport = absl::Milliseconds(250);

// Of the host tier, what its clients' landing memory may take beside it.
constexpr uint64_t kLandingShare = 8;

enum class State { kStarting, kReady, kStopping };

const char* ToString(State state) {
  switch (state) {
    case State::kStarting:
      return "starting";
    case State::kReady:
      return "ready";
    case State::kStopping:
      return "stopping";
  }
  return "unknown";
}

absl::Status WithFlag(std::string_view flag, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("{}: {}", flag, std::string(status.message())));
}

// Bounds that follow from others.
NodeOptions WithBounds(NodeOptions options) {
  options.limits.max_leased_bytes = options.host_bytes / 2;  // the rest stays for new blocks
  return options;
}

// Built in the order of the members; taken down in the order written in Stop().
class NodeImpl final : public Node {
 public:
  NodeImpl(const NodeOptions& options, NodeHooks hooks)
      : options_(WithBounds(options)), hooks_(std::move(hooks)) {}
  ~NodeImpl() override { Stop(); }

  absl::Status Build();

  const NodeAddresses& addresses() const override { return addresses_; }
  std::string Describe() const override;
  void Stop() override;

 private:
  void CloseColdTier(absl::Duration deadline);

  struct DataThread {
    std::unique_ptr<DataService> service;
    std::unique_ptr<Transport> transport;
  };

  absl::Status StartHttp();
  absl::StatusOr<std::unique_ptr<ColdTier>> OpenColdTier();
  absl::Status KeepNamespaces(const ColdTier* cold);
  absl::Status StartStore();
  absl::Status StartDataThread(size_t i);
  absl::Status StartNetwork();
  absl::Status StartLocal();
  absl::Status StartControl();
  absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(size_t i, TransportHandler* handler);
  // Whether the network holds on to the memory that it knows, so that no part of it can become
  // another tenant's.
  bool pinned() const { return network_ != nullptr && network_->name() == "rdma"; }
  absl::StatusOr<SharedMemory> Share(const SessionToken& token, uid_t peer);
  std::string Advertised(const std::string& bound) const;
  control::v1::SessionOpened Welcome() const;
  control::v1::NodeStatus Status() const;
  std::vector<control::v1::FolderInfo> Folders() const;
  void Collect(std::vector<MetricSample>* out) const;
  size_t connection_count() const;
  void EndSession(uint64_t session_id);
  absl::Duration Housekeep();
  void WaitUntilQuiet(absl::Duration timeout);

  const NodeOptions options_;
  const NodeHooks hooks_;
  Clock* const clock_ = Clock::Real();
  absl::Duration opened_at_;          // the ssd tier, by the clock
  std::vector<std::string> devices_;  // of its folders, in words
  const absl::Duration started_ = clock_->Now();
  // Later starts have larger ones.
  const uint64_t incarnation_ = static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()));
  std::atomic<State> state_{State::kStarting};
  NodeAddresses addresses_;

  Security security_;
  MetricRegistry registry_;
  DataMetrics data_metrics_{&registry_};
  std::unique_ptr<HttpService> http_;
  std::unique_ptr<NamespaceKeeper> keeper_;  // where blocks outlive the process
  std::unique_ptr<TieredStore> store_;
  NamespaceTable namespaces_{options_.limits.max_namespaces,
                             static_cast<uint32_t>(options_.max_block_bytes)};
  std::unique_ptr<SessionTable> sessions_;
  std::unique_ptr<Mover> mover_;
  std::unique_ptr<Scrubber> scrubber_;
  std::unique_ptr<Network> network_;
  std::vector<DataThread> data_;
  LandingMemories landings_{std::max(options_.host_bytes / kLandingShare, LandingMemories::kBytes)};
  std::unique_ptr<LocalService> local_;
  std::unique_ptr<ControlServer> control_;
  absl::Duration next_beat_;
  std::unique_ptr<BackgroundLoop> housekeeper_;
};

// --- Building

absl::Status NodeImpl::Build() {
  // First: there are no threads of ours yet.
  if (options_.transport != "tcp") UcxContext::LetListenersReusePorts();
  TERRACE_RETURN_IF_ERROR(options_.Validate());
  TERRACE_ASSIGN_OR_RETURN(security_, Security::Load(options_));
  NodeOptions probed = options_;
  TERRACE_RETURN_IF_ERROR(HoldPorts(&probed).status());  // for the message, and let go again
  TERRACE_RETURN_IF_ERROR(StartHttp());  // first: it answers "starting" while memory is touched
  TERRACE_RETURN_IF_ERROR(StartNetwork());
  TERRACE_RETURN_IF_ERROR(StartStore());
  sessions_ = std::make_unique<SessionTable>(clock_, options_.limits);
  mover_ = std::make_unique<Mover>(store_.get(), &namespaces_);
  scrubber_ = std::make_unique<Scrubber>(store_->cold());
  for (size_t i = 0; i < options_.data_threads; ++i) TERRACE_RETURN_IF_ERROR(StartDataThread(i));
  TERRACE_RETURN_IF_ERROR(StartLocal());
  registry_.AddCollector([this](std::vector<MetricSample>* out) { Collect(out); });
  AddProcessMetrics(&registry_);
  TERRACE_RETURN_IF_ERROR(StartControl());  // last: from here on there are clients
  housekeeper_ = std::make_unique<BackgroundLoop>("terrace-house", [this] { return Housekeep(); });
  state_ = State::kReady;
  return absl::OkStatus();
}

absl::Status NodeImpl::StartHttp() {
  const HostPort address = *ParseHostPort(options_.http_listen);
  absl::StatusOr<std::unique_ptr<HttpService>> http =
      HttpService::Start(address, {&registry_, [this] { return ToString(state_.load()); }});
  if (!http.ok()) return WithFlag("--http-listen", http.status());
  http_ = *std::move(http);
  addresses_.http = JoinHostPort(address.host, http_->port());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ColdTier>> NodeImpl::OpenColdTier() {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<SsdFolder> folders, ParseSsdFolders(options_.ssd));
  if (folders.empty()) return nullptr;
  ColdTierOptions tier;
  tier.max_age = options_.ssd_max_age;
  tier.write_budget_per_day = options_.ssd_write_budget;
  tier.write_rate = options_.ssd_write_rate;
  for (const SsdFolder& folder : folders) {
    ColdFolderOptions one;
    one.path = folder.path;
    one.budget_bytes = folder.bytes;
    if (folder.bytes == 0) {
      TERRACE_ASSIGN_OR_RETURN(one.budget_bytes, DefaultSsdBytes(folder.path));
    }
    one.on_request = RequestTimes(folder.path, &registry_);
    one.cluster = kLocalCluster;
    one.node = options_.node_id;
    tier.folders.push_back(std::move(one));
  }
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<ColdTier> opened, ColdTier::Open(std::move(tier)));
  opened_at_ = clock_->Now();
  for (const std::string& path : opened->paths()) devices_.push_back(FileSystemOf(path));
  return opened;
}

absl::Status NodeImpl::KeepNamespaces(const ColdTier* cold) {
  if (cold == nullptr && hooks_.keep == nullptr) return absl::OkStatus();
  keeper_ = cold != nullptr ? std::make_unique<NamespaceKeeper>(cold->paths())
                            : std::make_unique<NamespaceKeeper>(hooks_.keep);
  return namespaces_.KeepIn(keeper_.get());
}

absl::Status NodeImpl::StartStore() {
  TieredStoreOptions store;
  absl::StatusOr<std::unique_ptr<ColdTier>> cold = OpenColdTier();
  if (!cold.ok()) {
    const absl::string_view message = absl::StripPrefix(cold.status().message(), "ssd: ");
    return WithFlag("--ssd", absl::Status(cold.status().code(), message));
  }
  TERRACE_RETURN_IF_ERROR(KeepNamespaces(cold->get()));
  store.host_bytes = options_.host_bytes;
  store.max_block_bytes = static_cast<uint32_t>(options_.max_block_bytes);
  store.progress = hooks_.progress;
  store.tenant_of = [this](NamespaceId ns) {
    const uint32_t tenant = namespaces_.TenantOf(ns);
    return pinned() ? std::min(tenant, uint32_t{1}) : tenant;
  };
  store.keep = hooks_.keep;
  // In one piece for all tenants it could not tell whose blocks have gone meanwhile.
  store.tenant_lives = [this](uint32_t tenant) {
    return pinned() ? tenant == 1 : namespaces_.HasTenant(tenant);
  };
  absl::StatusOr<std::unique_ptr<TieredStore>> created =
      TieredStore::Create(std::move(store), *std::move(cold));
  if (!created.ok()) return WithFlag("--host-bytes", created.status());
  store_ = *std::move(created);
  return absl::OkStatus();
}

absl::Status NodeImpl::StartNetwork() {
  if (hooks_.make_transport) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<Network>> network = Network::Create(options_.transport);
  if (!network.ok()) return WithFlag("--transport", network.status());
  network_ = *std::move(network);
  Log(network_->fell_back() ? LogLevel::kWarning : LogLevel::kInfo, "node",
      "data travels by {} (--transport {}): {}", network_->name(), options_.transport,
      network_->reason());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Transport>> NodeImpl::MakeTransport(size_t i,
                                                                   TransportHandler* handler) {
  if (hooks_.make_transport) return hooks_.make_transport(handler);
  return network_->MakeTransport(
      {.thread_name = fmt::format("terrace-data-{}", i),
       .max_connections = static_cast<uint32_t>(options_.limits.max_connections)},
      handler);
}

absl::Status NodeImpl::StartDataThread(size_t i) {
  const DataPlane plane{clock_,       store_.get(),   sessions_.get(), &namespaces_,
                        mover_.get(), &data_metrics_, options_.limits};
  auto service = std::make_unique<DataService>(plane);
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, MakeTransport(i, service.get()));
  service->Attach(transport.get());
  data_.push_back({std::move(service), std::move(transport)});
  Transport& ours = *data_.back().transport;
  if (absl::Status known = ours.Register(store_->memory()); !known.ok()) {
    Log(LogLevel::kWarning, "node", "blocks are sent by way of copies: {}", known.ToString());
  }
  const HostPort address = DataAddress(options_, i);
  absl::StatusOr<std::string> bound = ours.Listen(JoinHostPort(address.host, address.port));
  if (!bound.ok()) return WithFlag("--data-listen", bound.status());
  addresses_.data.push_back(Advertised(*bound));
  return absl::OkStatus();
}

absl::Status NodeImpl::StartLocal() {
  if (options_.local_listen == "off") return absl::OkStatus();
  if (pinned() && !options_.credentials.empty()) {
    Log(LogLevel::kInfo, "node",
        "no memory is shared on this machine: --transport rdma holds it "
        "in one piece for all tenants");
    return absl::OkStatus();
  }
  const std::string address = options_.local_listen == "auto"
                                  ? fmt::format("@terrace-{}-{}", getpid(), incarnation_)
                                  : options_.local_listen;
  const auto share = [this](const SessionToken& token, uid_t peer) { return Share(token, peer); };
  absl::StatusOr<std::unique_ptr<LocalService>> local =
      LocalService::Start({address, share, &registry_});
  if (!local.ok()) return WithFlag("--local-listen", local.status());
  local_ = *std::move(local);
  addresses_.local = address;
  return absl::OkStatus();
}

absl::StatusOr<SharedMemory> NodeImpl::Share(const SessionToken& token, uid_t peer) {
  const std::shared_ptr<Session> session = sessions_->Authenticate(token);
  if (session == nullptr) return absl::UnauthenticatedError("no valid token");
  // Anybody may have a session then, but what crosses the loopback interface leaves no descriptor.
  if (options_.credentials.empty() && peer != 0 && peer != geteuid()) {
    return absl::PermissionDeniedError(
        fmt::format("user {} is not the node's own, and there are no credentials", peer));
  }
  TERRACE_ASSIGN_OR_RETURN(
      Descriptor fd, store_->ShareMemory(pinned() ? 1 : namespaces_.NumberOf(session->tenant)));
  SharedMemory shared{.bytes = store_->memory().size()};
  shared.descriptors.push_back(std::move(fd));
  std::shared_ptr<const LandingMemory> landing = session->landing();
  if (landing == nullptr) {
    absl::StatusOr<std::shared_ptr<const LandingMemory>> created = landings_.Create();
    if (!created.ok()) return shared;  // what it puts travels
    landing = *std::move(created);
    session->SetLanding(landing);
  }
  TERRACE_ASSIGN_OR_RETURN(Descriptor writable, landing->Open());
  shared.landing_bytes = landing->bytes().size();
  shared.descriptors.push_back(std::move(writable));
  return shared;
}

std::string NodeImpl::Advertised(const std::string& bound) const {
  if (options_.advertise.empty()) return bound;
  const std::string host = options_.advertise.find(':') == std::string::npos
                               ? options_.advertise
                               : fmt::format("[{}]", options_.advertise);
  return host + bound.substr(bound.rfind(':'));
}

absl::Status NodeImpl::StartControl() {
  ControlPlane plane;
  plane.security = &security_;
  plane.sessions = sessions_.get();
  plane.namespaces = &namespaces_;
  plane.store = store_.get();
  plane.mover = mover_.get();
  plane.scrubber = scrubber_.get();
  plane.registry = &registry_;
  plane.welcome = Welcome();
  plane.status = [this] { return Status(); };
  plane.folders = [this] { return Folders(); };
  plane.end_session = [this](uint64_t id) { EndSession(id); };
  const HostPort address = *ParseHostPort(options_.listen);
  absl::StatusOr<std::unique_ptr<ControlServer>> control =
      ControlServer::Start(JoinHostPort(address.host, address.port), std::move(plane));
  if (!control.ok()) return WithFlag("--listen", control.status());
  control_ = *std::move(control);
  addresses_.control = Advertised(JoinHostPort(address.host, control_->port()));
  return absl::OkStatus();
}

// --- Running

void NodeImpl::EndSession(uint64_t session_id) {
  sessions_->End(session_id);
  for (const DataThread& thread : data_) thread.service->EndSession(session_id);
}

absl::Duration NodeImpl::Housekeep() {
  const absl::Duration next_lease = sessions_->ExpireLeases();
  const absl::Duration now = clock_->Now();
  if (now >= next_beat_) {
    control_->Beat();
    next_beat_ = now + kHeartbeat;
  }
  return std::min(next_lease, next_beat_ - now);
}

// --- Seeing

std::string NodeImpl::Describe() const {
  return fmt::format("control={} data={} http={} node={} security=\"{}\"", addresses_.control,
                     fmt::join(addresses_.data, ","), addresses_.http, options_.node_id,
                     security_.Describe());
}

control::v1::SessionOpened NodeImpl::Welcome() const {
  control::v1::SessionOpened welcome;
  for (const std::string& address : addresses_.data) welcome.add_data_addresses(address);
  if (network_) welcome.set_transport(network_->name());
  welcome.set_local_address(addresses_.local);
  welcome.set_host_id(MachineId());
  welcome.set_node_id(options_.node_id);
  welcome.set_incarnation(incarnation_);
  control::v1::Limits& limits = *welcome.mutable_limits();
  limits.set_max_block_bytes(static_cast<uint32_t>(options_.max_block_bytes));
  limits.set_max_keys_per_frame(kMaxKeysPerFrame);
  limits.set_max_requests_in_flight(options_.limits.max_requests_in_flight);
  limits.set_max_bytes_in_flight(options_.limits.max_bytes_in_flight);
  limits.set_max_leases(static_cast<uint32_t>(options_.limits.max_leases));
  limits.set_max_lease_ms(
      static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.limits.max_lease)));
  limits.set_max_reservations(options_.limits.max_reservations);
  return welcome;
}

control::v1::NodeStatus NodeImpl::Status() const {
  const TransportStats transport = data_.front().transport->Stats();
  control::v1::NodeStatus status;
  status.set_node_id(options_.node_id);
  status.set_version(kVersion);
  status.set_incarnation(incarnation_);
  status.set_host_id(MachineId());
  status.set_uptime_seconds(absl::ToDoubleSeconds(clock_->Now() - started_));
  status.set_state(ToString(state_.load()));
  status.set_control_address(addresses_.control);
  for (const std::string& address : addresses_.data) status.add_data_addresses(address);
  status.set_http_address(addresses_.http);
  status.set_security(security_.Describe());
  status.set_transport(transport.profile);
  if (network_) status.set_ucx_version(network_->ucx_version());
  status.set_sessions(static_cast<uint32_t>(sessions_->session_count()));
  status.set_connections(static_cast<uint32_t>(connection_count()));
  status.set_leases(static_cast<uint32_t>(sessions_->lease_count()));
  status.set_reservations(static_cast<uint32_t>(sessions_->reservation_count()));
  for (const MemoryBudgetItem& item : MemoryBudget(options_)) {
    control::v1::MemoryItem& out = *status.add_memory();
    out.set_name(item.name);
    out.set_bytes(item.bytes);
  }
  status.set_resident_memory_bytes(ResidentMemoryBytes());
  status.set_restarts(hooks_.restarts.count);
  status.set_last_end(hooks_.restarts.why);
  for (control::v1::FolderInfo& folder : Folders()) *status.add_folders() = std::move(folder);
  return status;
}

std::vector<control::v1::FolderInfo> NodeImpl::Folders() const {
  std::vector<control::v1::FolderInfo> folders;
  if (store_->cold() == nullptr) return folders;
  const std::vector<ColdFolderStats> stats = store_->cold()->FolderStats();
  for (size_t i = 0; i < stats.size(); ++i) {
    folders.push_back(ToFolderInfo(stats[i], devices_[i]));
  }
  return folders;
}

size_t NodeImpl::connection_count() const {
  size_t count = 0;
  for (const DataThread& thread : data_) count += thread.service->connection_count();
  return count;
}

void NodeImpl::Collect(std::vector<MetricSample>* out) const {
  const auto gauge = [&](const char* name, const char* help, size_t value) {
    out->push_back({name, help, false, {}, static_cast<double>(value)});
  };
  gauge("terrace_sessions", "Sessions open", sessions_->session_count());
  gauge("terrace_connections", "Data connections open", connection_count());
  gauge("terrace_leases", "Leases held", sessions_->lease_count());
  gauge("terrace_leased_bytes", "Bytes of blocks that leases hold", sessions_->leased_bytes());
  gauge("terrace_reservations", "Places reserved for puts", sessions_->reservation_count());
  gauge("terrace_namespaces", "Namespaces", namespaces_.count());
  TransportStats sum;
  for (const DataThread& thread : data_) {
    const TransportStats stats = thread.transport->Stats();
    sum.bytes_sent += stats.bytes_sent;
    sum.bytes_received += stats.bytes_received;
    sum.malformed += stats.malformed;
    sum.payload_in_flight += stats.payload_in_flight;
  }
  const auto counter = [&](const char* name, const char* help, MetricLabels labels,
                           uint64_t value) {
    out->push_back({name, help, true, std::move(labels), static_cast<double>(value)});
  };
  counter("terrace_restarts_total", "Times that the serving process was started again", {},
          hooks_.restarts.count);
  counter("terrace_leases_refused_total", "Leases refused by a bound", {},
          sessions_->leases_refused());
  constexpr char kBytes[] = "terrace_transport_bytes_total";
  counter(kBytes, "Bytes on the wire", {{"direction", "out"}}, sum.bytes_sent);
  counter(kBytes, "Bytes on the wire", {{"direction", "in"}}, sum.bytes_received);
  counter("terrace_transport_malformed_total", "Broken transport headers", {}, sum.malformed);
  gauge("terrace_transport_in_flight_bytes", "Payload handed to the wire", sum.payload_in_flight);
  CollectTiers(store_->Tiers(), out);
  if (const ColdTier* cold = store_->cold()) {
    CollectFolders(cold->FolderStats(), options_.ssd_endurance, clock_->Now() - opened_at_, out);
  }
}

// --- Ending

// What it does not have yet, in the time that is left, at least half of all.
void NodeImpl::CloseColdTier(absl::Duration deadline) {
  const LastDemotions last =
      store_->CloseColdTier(std::max(deadline - clock_->Now(), options_.stop_timeout / 2));
  Log(last.lost > 0 ? LogLevel::kWarning : LogLevel::kInfo, "node",
      "the end: {} blocks ({}) of host memory alone were written to the ssd tier, {} were not",
      last.blocks, FormatBytes(last.bytes), last.lost);
}

void NodeImpl::Stop() {
  if (state_.exchange(State::kStopping) == State::kStopping) return;
  const absl::Duration deadline = clock_->Now() + options_.stop_timeout;
  // 1. Nothing new; workers look elsewhere; what was begun is finished.
  if (control_) control_->Goaway("the node is stopping");
  WaitUntilQuiet(options_.stop_timeout);
  // 2. Sessions end: their streams, leases and connections.
  local_.reset();
  if (control_) control_->Shutdown(kEndOfStreams);
  housekeeper_.reset();
  // 3. Connections end: no place is written to, no block is read any more.
  for (const DataThread& thread : data_) thread.transport->Shutdown(kEndOfTransport);
  // 4. Nobody looks at what goes next.
  http_.reset();
  control_.reset();
  scrubber_.reset();
  mover_.reset();
  sessions_.reset();
  // 5. The ssd tier takes what is in host memory alone.
  if (store_ && store_->cold() != nullptr) CloseColdTier(deadline);
  // 6. Memory: after everyone who refers to it.
  data_.clear();
  network_.reset();
  store_.reset();
}

void NodeImpl::WaitUntilQuiet(absl::Duration timeout) {
  struct Count {
    Mutex mutex;
    CondVar changed;
    size_t busy ABSL_GUARDED_BY(mutex) = 0;
  };
  auto count = std::make_shared<Count>();  // the last answer may come after the timeout
  const absl::Duration deadline = clock_->Now() + timeout;
  MutexLock lock(&count->mutex);
  count->busy = data_.size();
  for (const DataThread& thread : data_) {
    thread.service->Drain([count] {
      MutexLock locked(&count->mutex);
      --count->busy;
      count->changed.Signal();
    });
  }
  while (count->busy > 0 && clock_->Now() < deadline) {
    count->changed.WaitWithTimeout(&count->mutex, deadline - clock_->Now());
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Node>> Node::Start(const NodeOptions& options, NodeHooks hooks) {
  auto node = std::make_unique<NodeImpl>(options, std::move(hooks));
  TERRACE_RETURN_IF_ERROR(node->Build());
  return node;
}

}  // namespace terrace
