// The ports of a node.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "cache_node/address.h"
#include "cache_node/options.h"
#include "proto/descriptor.h"

namespace terrace {

// Where the i-th data thread listens.
HostPort DataAddress(const NodeOptions& options, size_t i);

// Holds all of them (HoldPort), those of the control plane and of HTTP also where they are 0: then
// `options` has the ones that were chosen. The data plane's may change, its clients are told. Told
// before minutes of memory are touched, the error names the flag and the mend.
absl::StatusOr<std::vector<Descriptor>> HoldPorts(NodeOptions* options);

}  // namespace terrace
