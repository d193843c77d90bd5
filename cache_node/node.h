// A whole node in one object: what is built, in which order, and how it ends. The program
// terraced is this and a command line; tests run it in their own process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache_node/descriptor_store.h"
#include "cache_node/options.h"
#include "cluster/transport.h"

namespace terrace {

struct NodeAddresses {
  std::string control;
  std::vector<std::string> data;  // one per data thread
  std::string http;
  std::string local;  // "": none
};

// What a test may replace.
struct NodeHooks {
  // Makes the transport of one data thread; empty: as options say.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(TransportHandler*)> make_transport;
  // Told while memory is touched: bytes done, bytes in all; one call at a time.
  std::function<void(uint64_t, uint64_t)> progress;
  // What outlives the process, and what is known of earlier ones. Outlives the node; null: nothing.
  DescriptorStore* keep = nullptr;
  Restarts restarts;
};

class Node {
 public:
  // Blocks until the node serves. The error names the flag, what is wrong, and the mend.
  static absl::StatusOr<std::unique_ptr<Node>> Start(const NodeOptions& options,
                                                     NodeHooks hooks = {});
  virtual ~Node() = default;  // stops

  virtual const NodeAddresses& addresses() const = 0;
  // "control=127.0.0.1:7470 data=127.0.0.1:41001,127.0.0.1:41002 http=… node=… security="…"",
  // for programs that start a node.
  virtual std::string Describe() const = 0;

  // Finishes what is in flight, tells everybody, ends; within stop_timeout plus a second.
  // Idempotent.
  virtual void Stop() = 0;
};

}  // namespace terrace
