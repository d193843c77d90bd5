#include "cache_node/admin_service.h"

#include <optional>
#include <set>

#include "absl/functional/function_ref.h"
#include "cache_node/control_auth.h"
#include "cache_node/tier_metrics.h"
#include "proto/clock.h"
#include "proto/log.h"
#include "proto/status.h"

namespace terrace {
namespace {

namespace v1 = control::v1;

constexpr uint32_t kDefaultTop = 20;
constexpr uint32_t kMaxTop = 1000;

// Checks the role, then answers.
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const ControlPlane& plane,
                                 Role role,
                                 absl::FunctionRef<absl::Status(const Identity&)> answer) {
  absl::StatusOr<Identity> identity = Authorize(*context, *plane.security, role);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(identity.ok() ? answer(*identity) : identity.status()));
  return reactor;
}

void Fill(const ResidentBlock& block, v1::TopBlock* out) {
  out->set_key(ToString(block.key));
  out->set_bytes(block.bytes);
  out->set_score(block.score);
  out->set_depth(block.depth);
  out->set_references(block.references);
  out->set_tier(ToString(block.tier));
}

using Counts = google::protobuf::Map<std::string, uint64_t>;

void Fill(const NamedCounts& counts, Counts* out) {
  for (const auto& [name, blocks] : counts) (*out)[name] = blocks;
}

void Fill(const TierStats& stats, v1::TierInfo* out) {
  out->set_tier(ToString(stats.tier));
  out->set_capacity_bytes(stats.capacity_bytes);
  out->set_value_bytes(stats.value_bytes);
  out->set_occupied_bytes(stats.occupied_bytes);
  out->set_reserved_bytes(stats.reserved_bytes);
  out->set_blocks(stats.blocks);
  out->set_referenced_blocks(stats.referenced_blocks);
  out->set_index_bytes(stats.index_bytes);
  out->set_hits(stats.hits);
  out->set_misses(stats.misses);
  out->set_puts(stats.puts);
  out->set_puts_existing(stats.puts_existing);
  out->set_puts_no_space(stats.puts_no_space);
  out->set_puts_aborted(stats.puts_aborted);
  out->set_kept(stats.kept);
  out->set_turnovers(stats.turnovers);
  Fill(EvictionsOf(stats), out->mutable_evictions());
}

// What is between the two is told with the faster one.
void Fill(const ControlPlane& plane, v1::GetTiersReply* reply) {
  const std::vector<TierStats> tiers = plane.store->Tiers();
  for (const TierStats& tier : tiers) Fill(tier, reply->add_tiers());
  if (plane.store->cold() == nullptr) return;
  Fill(DemotionsOf(tiers.front()), reply->mutable_tiers(0)->mutable_demotions());
  Fill(FillsOf(tiers.front()), reply->mutable_tiers(0)->mutable_fills());
  v1::TierInfo* ssd = reply->mutable_tiers(reply->tiers_size() - 1);
  for (v1::FolderInfo& folder : plane.folders()) *ssd->add_folders() = std::move(folder);
}

// The progress of something long, told by the thread that does it. gRPC and that thread may let go
// of it in either order: each holds a share. Of news that wait, the latest is sent.
template <typename Message>
class ProgressStream final : public grpc::ServerWriteReactor<Message> {
 public:
  static std::shared_ptr<ProgressStream> Make() {
    std::shared_ptr<ProgressStream> stream(new ProgressStream);
    stream->self_ = stream;
    return stream;
  }

  // False when nobody listens any more.
  bool Tell(Message message) {
    MutexLock lock(&mutex_);
    if (finished_ || ended_) return false;
    latest_ = std::move(message);
    if (!writing_) WriteLatest();
    return true;
  }

  void End(const grpc::Status& status) {
    MutexLock lock(&mutex_);
    EndLocked(status);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    writing_ = false;
    if (ok && latest_) {
      WriteLatest();
    } else if (!ok || message_.done() || ended_) {
      EndLocked(ok ? grpc::Status::OK : grpc::Status::CANCELLED);
    }
  }
  void OnCancel() override {
    MutexLock lock(&mutex_);
    ended_ = true;
    latest_.reset();
    if (!writing_) EndLocked(grpc::Status::CANCELLED);
  }
  void OnDone() override { self_.reset(); }

 private:
  ProgressStream() = default;

  void WriteLatest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    message_ = *std::exchange(latest_, std::nullopt);
    writing_ = true;
    this->StartWrite(&message_);
  }
  void EndLocked(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    finished_ = true;
    this->Finish(status);
  }

  std::shared_ptr<ProgressStream> self_;  // gRPC's share
  Mutex mutex_;
  std::optional<Message> latest_ ABSL_GUARDED_BY(mutex_);  // not yet written
  Message message_ ABSL_GUARDED_BY(mutex_);                // unchanged while writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;     // the caller does not listen any more
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // Finish was called
};

v1::DeleteNamespaceProgress ToMessage(const DeletionProgress& progress) {
  v1::DeleteNamespaceProgress message;
  message.set_host_blocks_forgotten(progress.forgotten.host);
  message.set_ssd_blocks_forgotten(progress.forgotten.ssd);
  message.set_host_blocks_total(progress.total.host);
  message.set_ssd_blocks_total(progress.total.ssd);
  message.set_done(progress.done);
  return message;
}

v1::ScrubReply ToMessage(const ScrubProgress& progress) {
  v1::ScrubReply message;
  message.set_blocks(progress.blocks);
  message.set_blocks_total(progress.blocks_total);
  message.set_bytes(progress.bytes);
  message.set_corrupt(progress.corrupt);
  message.set_unreadable(progress.unreadable);
  message.set_left(progress.left);
  message.set_done(progress.done);
  return message;
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::GetStatus(grpc::CallbackServerContext* context,
                                                  const v1::GetStatusRequest*,
                                                  v1::NodeStatus* reply) {
  return Answer(context, plane_, Role::kAny, [&](const Identity&) {
    *reply = plane_.status();
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::GetTiers(grpc::CallbackServerContext* context,
                                                 const v1::GetTiersRequest*,
                                                 v1::GetTiersReply* reply) {
  return Answer(context, plane_, Role::kAny, [&](const Identity&) {
    Fill(plane_, reply);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::GetTop(grpc::CallbackServerContext* context,
                                               const v1::GetTopRequest* request,
                                               v1::GetTopReply* reply) {
  return Answer(context, plane_, Role::kAny, [&](const Identity& identity) -> absl::Status {
    const uint32_t count = request->count() == 0 ? kDefaultTop : request->count();
    if (count > kMaxTop) return absl::InvalidArgumentError("count: more than 1000");
    std::set<NamespaceId> own;
    for (const auto& ns : plane_.namespaces->List(identity.tenant)) own.insert(ns->id());
    const auto wanted = [&](NamespaceId ns) { return identity.admin || own.contains(ns); };
    for (const ResidentBlock& block : plane_.store->Top(count, wanted)) {
      Fill(block, reply->add_blocks());
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::Locate(grpc::CallbackServerContext* context,
                                               const v1::LocateRequest* request,
                                               v1::LocateReply* reply) {
  return Answer(context, plane_, Role::kAny, [&](const Identity& identity) -> absl::Status {
    TERRACE_ASSIGN_OR_RETURN(const BlockKey key, ParseBlockKey(request->key()));
    reply->set_node_id(plane_.welcome.node_id());
    if (!Sees(identity, key.ns)) return absl::OkStatus();
    if (const std::optional<ResidentBlock> block = plane_.store->Find(key)) {
      reply->set_resident(true);
      Fill(*block, reply->mutable_block());
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::GetStats(grpc::CallbackServerContext* context,
                                                 const v1::GetStatsRequest*,
                                                 v1::GetStatsReply* reply) {
  return Answer(context, plane_, Role::kAny, [&](const Identity&) {
    for (const auto& [name, value] : plane_.registry->Values()) {
      (*reply->mutable_values())[name] = value;
    }
    reply->set_monotonic_seconds(absl::ToDoubleSeconds(Clock::Real()->Now()));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::ListNamespaces(grpc::CallbackServerContext* context,
                                                       const v1::ListNamespacesRequest*,
                                                       v1::ListNamespacesReply* reply) {
  return Answer(context, plane_, Role::kAny, [&](const Identity& identity) {
    auto usage = plane_.store->UsageByNamespace();
    for (const auto& ns : plane_.namespaces->List(identity.admin ? "" : identity.tenant)) {
      Describe(*ns, usage[ns->id()], reply->add_namespaces());
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::CreateNamespace(grpc::CallbackServerContext* context,
                                                        const v1::CreateNamespaceRequest* request,
                                                        v1::NamespaceInfo* reply) {
  return Answer(context, plane_, Role::kAdmin, [&](const Identity& identity) -> absl::Status {
    bool created = false;
    TERRACE_ASSIGN_OR_RETURN(
        const std::shared_ptr<OpenedNamespace> ns,
        plane_.namespaces->Open(identity.tenant,
                                {request->name(), request->layout(), request->hash_scheme()},
                                /*create=*/true, &created));
    Describe(*ns, plane_.store->UsageByNamespace()[ns->id()], reply);
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<v1::DeleteNamespaceProgress>* AdminService::DeleteNamespace(
    grpc::CallbackServerContext* context, const v1::DeleteNamespaceRequest* request) {
  const auto stream = ProgressStream<v1::DeleteNamespaceProgress>::Make();
  absl::StatusOr<Identity> identity = Authorize(*context, *plane_.security, Role::kAdmin);
  absl::Status status = identity.status();
  if (status.ok()) {
    const std::string& tenant = request->tenant().empty() ? identity->tenant : request->tenant();
    status = plane_.namespaces->Delete(
        tenant, request->name(),
        [stream](const DeletionProgress& progress) { stream->Tell(ToMessage(progress)); });
  }
  if (status.ok()) {
    Log(LogLevel::kInfo, "namespace", "{} is being deleted by tenant {}", request->name(),
        identity->tenant);
    plane_.mover->Wake();
  } else {
    stream->End(ToGrpc(status));
  }
  return stream.get();
}

grpc::ServerWriteReactor<v1::ScrubReply>* AdminService::Scrub(grpc::CallbackServerContext* context,
                                                              const v1::ScrubRequest* request) {
  const auto stream = ProgressStream<v1::ScrubReply>::Make();
  absl::StatusOr<Identity> identity = Authorize(*context, *plane_.security, Role::kAdmin);
  absl::Status status = identity.status();
  if (status.ok()) {
    status = plane_.scrubber->Start(request->bytes_per_second(),
                                    [stream](const ScrubProgress& progress) {
                                      if (progress.status.ok())
                                        return stream->Tell(ToMessage(progress));
                                      stream->End(ToGrpc(progress.status));
                                      return false;
                                    });
  }
  if (!status.ok()) stream->End(ToGrpc(status));
  return stream.get();
}

void AdminService::Describe(const OpenedNamespace& ns, const NamespaceUsage& usage,
                            v1::NamespaceInfo* out) {
  out->set_tenant(ns.tenant());
  out->set_name(ns.spec().name);
  out->set_id(ns.id().value);
  out->set_layout_id(ns.layout_id());
  *out->mutable_layout() = ns.spec().layout;
  *out->mutable_hash_scheme() = ns.spec().hash_scheme;
  out->set_blocks(usage.blocks);
  out->set_value_bytes(usage.value_bytes);
  out->set_deleting(!ns.live());
}

bool AdminService::Sees(const Identity& identity, NamespaceId ns) const {
  return identity.admin || plane_.namespaces->Find(identity.tenant, ns) != nullptr;
}

}  // namespace terrace
