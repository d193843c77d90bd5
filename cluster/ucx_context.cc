#include "cluster/ucx_context.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/socket.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>
#include <unistd.h>

#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "proto/status.h"

namespace terrace {
namespace {

struct Setting {
  const char* owner;  // the prefix of a single transport's settings, "" for UCX's own
  const char* name;
  const char* value;
};

// Each is left alone where the environment has UCX_<owner><name>.
constexpr Setting kCommon[] = {
    {"", "WARN_INVALID_CONFIG", "n"},
    {"", "MEMTYPE_CACHE", "n"},             // its hooks miss memory that came before them
    {"", "RCACHE_MAX_UNRELEASED", "1024"},  // else registration caches grow without bound
    {"", "KEEPALIVE_INTERVAL", "2s"},
    {"", "CM_USE_ALL_DEVICES", "n"},  // bytes travel where the connection was asked for
    {"TCP_", "KEEPIDLE", "2s"},
    {"TCP_", "KEEPINTVL", "1s"},
    {"TCP_", "PUT_ENABLE", "n"},  // UCX 1.13 aborts where a peer dies during one
    {"IB_", "PCI_RELAXED_ORDERING", "try"},
};

// Without tcp connecting hangs: it carries the connection manager.
constexpr Setting kLanes[] = {{"", "TLS", "ib,tcp"}};
constexpr Setting kDevicesOnly[] = {{"", "TLS", "ib"}};

constexpr Setting kInet[] = {{"TCP_", "AF_PRIO", "inet"}};
constexpr Setting kInet6[] = {{"TCP_", "AF_PRIO", "inet6"}};

bool InEnvironment(const std::string& name) {
  return std::getenv(("UCX_" + name).c_str()) != nullptr;
}

absl::Status Apply(std::span<const Setting> settings, ucp_config_t* config) {
  for (const Setting& setting : settings) {
    const std::string full_name = std::string(setting.owner) + setting.name;
    if (InEnvironment(full_name)) continue;
    // UCX 1.13 knows a transport's settings without its prefix, later versions with it. Those
    // that no transport knows are ignored.
    for (const std::string& name : {std::string(setting.name), full_name}) {
      TERRACE_RETURN_IF_ERROR(FromUcx(ucp_config_modify(config, name.c_str(), setting.value),
                                      fmt::format("UCX setting {}={}", name, setting.value)));
    }
  }
  return absl::OkStatus();
}

// UCX reports to stdout and catches faults by itself; both belong to the program. All of its
// errors reach us as statuses.
void Quieten() {
  if (!InEnvironment("LOG_LEVEL")) ucs_global_opts_set_value("LOG_LEVEL", "fatal");
  if (!InEnvironment("HANDLE_ERRORS")) {
    for (int fault : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(fault);
  }
  // As it was loaded UCX took a signal that switches its debug output on.
  struct sigaction action {};
  Dl_info owner{};
  if (!InEnvironment("DEBUG_SIGNO") && sigaction(SIGHUP, nullptr, &action) == 0 &&
      dladdr(reinterpret_cast<void*>(action.sa_handler), &owner) != 0 &&
      std::string_view(owner.dli_fname).find("libucs") != std::string_view::npos) {
    signal(SIGHUP, SIG_DFL);
  }
}

absl::StatusOr<UcxContextHandle> Init(std::span<const Setting> lanes,
                                      std::span<const Setting> family = kInet) {
  ucp_config_t* raw_config = nullptr;
  TERRACE_RETURN_IF_ERROR(FromUcx(ucp_config_read(nullptr, nullptr, &raw_config), "UCX settings"));
  const UcxConfig config(raw_config);
  TERRACE_RETURN_IF_ERROR(Apply(kCommon, config.get()));
  TERRACE_RETURN_IF_ERROR(Apply(lanes, config.get()));
  TERRACE_RETURN_IF_ERROR(Apply(family, config.get()));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  // No RMA: UCX's emulation of it lets a peer write to any address.
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;
  ucp_context_h context = nullptr;
  TERRACE_RETURN_IF_ERROR(FromUcx(ucp_init(&params, config.get(), &context), "UCX"));
  return UcxContextHandle(context);
}

absl::Status CheckDevices() {
  // An environment that names its transports is trusted with them.
  if (InEnvironment("TLS")) return absl::OkStatus();
  const absl::Status found = Init(kDevicesOnly).status();
  if (found.ok()) return found;
  return absl::UnavailableError(fmt::format("no RDMA device: {}", std::string(found.message())));
}

}  // namespace

void UcxContext::LetListenersReusePorts() {
  // The connection manager reads its settings from the environment alone.
  setenv("UCX_TCP_CM_REUSEADDR", "y", /*overwrite=*/0);
}

absl::StatusOr<std::unique_ptr<UcxContext>> UcxContext::Create() {
  Quieten();
  TERRACE_RETURN_IF_ERROR(CheckDevices());
  auto handle = Init(kLanes);
  if (!handle.ok()) return absl::UnavailableError(std::string(handle.status().message()));
  return std::make_unique<UcxContextImpl>(*std::move(handle));
}

UcxContextImpl::UcxContextImpl(UcxContextHandle inet)
    : process_(getpid()), inet_(std::move(inet)) {}

UcxContextImpl::~UcxContextImpl() {
  MutexLock lock(&mutex_);
  for (auto& [address, memory] : registered_) Unmap(&memory);
}

absl::StatusOr<ucp_context_h> UcxContextImpl::For(int family) {
  if (family == AF_INET) return inet_.get();
  // Neither a context nor a registration that is being made misses the other.
  MutexLock lock(&mutex_);
  if (inet6_ == nullptr) {
    auto made = Init(kLanes, kInet6);
    if (!made.ok()) return absl::UnavailableError(std::string(made.status().message()));
    inet6_ = *std::move(made);
    for (auto& [address, memory] : registered_) {
      TERRACE_RETURN_IF_ERROR(Map({address, memory.size}, inet6_.get(), &memory));
    }
  }
  return inet6_.get();
}

std::string UcxContextImpl::version() const {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

absl::Status UcxContextImpl::CheckProcess() const {
  if (getpid() == process_) return absl::OkStatus();
  return absl::FailedPreconditionError("UCX does not survive fork: create a context in the child");
}

absl::Status UcxContextImpl::Register(MutableByteSpan memory) {
  if (memory.empty()) return absl::InvalidArgumentError("memory to register is empty");
  MutexLock lock(&mutex_);
  if (const auto found = registered_.find(memory.data()); found != registered_.end()) {
    if (found->second.size != memory.size()) {
      return absl::InvalidArgumentError("memory at this address is registered with another size");
    }
    ++found->second.users;
    return absl::OkStatus();
  }
  Registered registered{.size = memory.size(), .users = 1, .handles = {}};
  absl::Status status = Map(memory, inet_.get(), &registered);
  if (status.ok() && inet6_ != nullptr) status = Map(memory, inet6_.get(), &registered);
  if (!status.ok()) {
    Unmap(&registered);
    return status;
  }
  registered_.emplace(memory.data(), std::move(registered));
  return absl::OkStatus();
}

void UcxContextImpl::Unregister(MutableByteSpan memory) {
  MutexLock lock(&mutex_);
  const auto found = registered_.find(memory.data());
  if (found == registered_.end() || --found->second.users > 0) return;
  Unmap(&found->second);
  registered_.erase(found);
}

absl::Status UcxContextImpl::Map(MutableByteSpan memory, ucp_context_h context, Registered* into) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = memory.data();
  params.length = memory.size();
  ucp_mem_h handle = nullptr;
  TERRACE_RETURN_IF_ERROR(FromUcx(ucp_mem_map(context, &params, &handle), "registration"));
  into->handles.emplace_back(context, handle);
  return absl::OkStatus();
}

void UcxContextImpl::Unmap(Registered* memory) {
  for (const auto& [context, handle] : memory->handles) ucp_mem_unmap(context, handle);
  memory->handles.clear();
}

}  // namespace terrace
