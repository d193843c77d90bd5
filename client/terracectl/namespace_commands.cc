// namespace list, create, delete.
#include <unistd.h>

#include <memory>

#include "client/table.h"
#include "client/terracectl/commands.h"
#include "fmt/format.h"
#include "proto/program.h"
#include "proto/status.h"
#include "proto/units.h"

namespace terrace::ctl {
namespace {

namespace wire = control::v1;
using Stub = wire::Admin::Stub;

struct Definition {
  std::string name;
  std::string model;
  std::string kv_dtype = "bf16";
  std::string format = "layer-first NHD";
  std::string hash_algorithm = "sha256";
  std::string seed_fingerprint;
  uint64_t block_tokens = 0, layers = 0, kv_heads = 0, head_dim = 0, shards = 1;
  uint64_t block_bytes = 0, segments = 1;
};

void PrintNamespaces(const google::protobuf::RepeatedPtrField<wire::NamespaceInfo>& namespaces) {
  Table table({"TENANT", "NAME", "ID", "HOST BLOCKS", "HOST VALUES", "BLOCK", "SEGMENTS", "MODEL",
               "STATE"});
  for (size_t i : {3, 4, 5, 6}) table.SetAlign(i, Table::Align::kRight);
  for (const wire::NamespaceInfo& ns : namespaces) {
    table.AddRow({ns.tenant(), ns.name(), fmt::format("{:016x}", ns.id()), FormatCount(ns.blocks()),
                  FormatBytes(ns.value_bytes()), FormatBytes(ns.layout().block_bytes()),
                  std::to_string(ns.layout().segments()), ns.layout().model(),
                  ns.deleting() ? "being deleted" : "open"});
  }
  PrintTo(stdout, "{}", table.Format());
}

absl::StatusOr<int> List(const GlobalOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
  TERRACE_ASSIGN_OR_RETURN(wire::ListNamespacesReply reply,
                           connection.Call(&Stub::ListNamespaces, wire::ListNamespacesRequest()));
  if (options.json) {
    PrintTo(stdout, "{}", ToJson(reply));
  } else {
    PrintNamespaces(reply.namespaces());
  }
  return 0;
}

absl::StatusOr<int> Create(const GlobalOptions& options, const Definition& definition) {
  wire::CreateNamespaceRequest request;
  request.set_name(definition.name);
  request.mutable_hash_scheme()->set_algorithm(definition.hash_algorithm);
  request.mutable_hash_scheme()->set_seed_fingerprint(definition.seed_fingerprint);
  wire::Layout* layout = request.mutable_layout();
  layout->set_model(definition.model);
  layout->set_kv_dtype(definition.kv_dtype);
  layout->set_format(definition.format);
  layout->set_block_tokens(static_cast<uint32_t>(definition.block_tokens));
  layout->set_layers(static_cast<uint32_t>(definition.layers));
  layout->set_kv_heads(static_cast<uint32_t>(definition.kv_heads));
  layout->set_head_dim(static_cast<uint32_t>(definition.head_dim));
  layout->set_shards(static_cast<uint32_t>(definition.shards));
  layout->set_block_bytes(
      static_cast<uint32_t>(std::min<uint64_t>(definition.block_bytes, UINT32_MAX)));
  layout->set_segments(static_cast<uint32_t>(definition.segments));
  TERRACE_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
  TERRACE_ASSIGN_OR_RETURN(wire::NamespaceInfo created,
                           connection.Call(&Stub::CreateNamespace, request));
  if (options.json) {
    PrintTo(stdout, "{}", ToJson(created));
  } else {
    google::protobuf::RepeatedPtrField<wire::NamespaceInfo> one;
    *one.Add() = std::move(created);
    PrintNamespaces(one);
  }
  return 0;
}

// A block that is in both tiers is in both numbers: their sum is of copies.
std::string Copies(uint64_t host, uint64_t ssd) {
  return fmt::format("{} in host memory, {} on ssd", FormatCount(host), FormatCount(ssd));
}

// Not bounded by --timeout: it goes on as long as there is progress to tell.
absl::StatusOr<int> Delete(const GlobalOptions& options, const std::string& name,
                           const std::string& tenant) {
  TERRACE_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
  wire::DeleteNamespaceRequest request;
  request.set_name(name);
  request.set_tenant(tenant);
  grpc::ClientContext context;
  Authorize(connection.dialed(), &context);
  auto reader = connection.stub()->DeleteNamespace(&context, request);
  const bool terminal = isatty(STDERR_FILENO) == 1;
  wire::DeleteNamespaceProgress progress;
  while (reader->Read(&progress)) {
    if (options.json) {
      PrintTo(stdout, "{}", ToJson(progress));
    } else if (terminal) {
      PrintTo(stderr, "\rblocks forgotten: {}; of {}\x1b[K",
              Copies(progress.host_blocks_forgotten(), progress.ssd_blocks_forgotten()),
              Copies(progress.host_blocks_total(), progress.ssd_blocks_total()));
    }
  }
  if (terminal && !options.json) PrintTo(stderr, "\r\x1b[K");
  TERRACE_RETURN_IF_ERROR(FromGrpc(reader->Finish(), connection.address()));
  if (!progress.done()) {
    return absl::UnavailableError(
        fmt::format("the node at {} broke off; the deletion may go on", connection.address()));
  }
  if (!options.json) {
    PrintTo(stdout, "namespace {} is deleted; blocks forgotten: {}\n", name,
            Copies(progress.host_blocks_forgotten(), progress.ssd_blocks_forgotten()));
  }
  return 0;
}

void AddCreate(Flags* parent, GlobalOptions* options, std::vector<Command>* commands) {
  auto d = std::make_shared<Definition>();
  constexpr uint64_t kMost = UINT32_MAX;
  Flags* flags = parent->AddCommand("create", "make a namespace; workers need the same definition");
  flags->AddString("NAME", &d->name, "[a-z0-9][a-z0-9._-]{0,62}");
  flags->Required();
  flags->AddBytes("--block-bytes", &d->block_bytes, "length of each block, 4KiB to 64MiB");
  flags->Required();
  flags->AddUint("--segments", &d->segments, "equal parts of a block, normally its layers", 1, 256);
  flags->AddString("--model", &d->model, "name of the model");
  flags->Required();
  flags->AddString("--kv-dtype", &d->kv_dtype, "bf16, fp16, fp8_e4m3, ...");
  flags->AddString("--format", &d->format, "order of dimensions within a block");
  flags->AddUint("--block-tokens", &d->block_tokens, "tokens of a block", 1, kMost);
  flags->Required();
  flags->AddUint("--layers", &d->layers, "layers of the model", 0, kMost);
  flags->AddUint("--kv-heads", &d->kv_heads, "KV heads of a shard", 0, kMost);
  flags->AddUint("--head-dim", &d->head_dim, "dimension of a head", 0, kMost);
  flags->AddUint("--shards", &d->shards, "ranks that hold different parts", 1, kMost);
  flags->AddString("--hash-algorithm", &d->hash_algorithm, "of the engine's digests");
  flags->AddString("--seed-fingerprint", &d->seed_fingerprint, "of the engine's hash seed");
  commands->push_back({flags, [=] { return Create(*options, *d); }});
}

}  // namespace

void AddNamespaceCommands(Flags* root, GlobalOptions* options, std::vector<Command>* commands) {
  Flags* parent = root->AddCommand("namespace", "list, create, delete namespaces");
  commands->push_back({parent->AddCommand("list",
                                          "the namespaces that the token may see, and what of them "
                                          "is in host memory; blocks on ssd are not counted"),
                       [=] { return List(*options); }});
  AddCreate(parent, options, commands);
  auto name = std::make_shared<std::string>();
  auto tenant = std::make_shared<std::string>();
  Flags* flags = parent->AddCommand("delete", "forget a namespace and all of its blocks");
  flags->AddString("NAME", name.get(), "of the namespace");
  flags->Required();
  flags->AddString("--tenant", tenant.get(), "whose it is; default: the token's");
  commands->push_back({flags, [=] { return Delete(*options, *name, *tenant); }});
}

}  // namespace terrace::ctl
