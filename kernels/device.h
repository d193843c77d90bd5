// Memory and copies of one accelerator, behind an interface with a host twin that runs
// everywhere. There is no #ifdef in a caller: a build without CUDA has no CUDA devices.
//
// Streams order work; Events mark points in them. Both belong to their device and must be
// destroyed before it. Thread-safe: Device; a Stream and an Event are used by one thread at a
// time. Nothing blocks but Synchronize, Allocate and the factories.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kernels/status.h"

namespace terrace::kernels {

// A point in a stream.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() const = 0;     // everything before it has happened
  virtual Status Synchronize() = 0;  // blocks until it has
};

class Stream {
 public:
  virtual ~Stream() = default;
  // Any direction between this device's memory and host memory; asynchronous where the host
  // side is pinned. Both sides stay valid until an event recorded afterwards is done.
  virtual Status Copy(void* to, const void* from, size_t bytes) = 0;
  // Waits, on the device, for an event of any stream of the same device.
  virtual Status WaitFor(const Event& event) = 0;
  virtual Status Record(std::unique_ptr<Event>* event) = 0;
  virtual Status Synchronize() = 0;
};

enum class MemoryKind { kDevice, kPinnedHost };

struct DeviceInfo {
  std::string name;  // "host-twin", "cuda:0 NVIDIA H200"
  size_t total_bytes = 0;
  size_t free_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual Status Info(DeviceInfo* info) const = 0;
  // 256-byte aligned; kOutOfMemory leaves nothing allocated. `*memory` is owned by the caller
  // until Free, which accepts null and must come before the device ends.
  virtual Status Allocate(MemoryKind kind, size_t bytes, void** memory) = 0;
  virtual Status Free(MemoryKind kind, void* memory) = 0;
  virtual Status CreateStream(std::unique_ptr<Stream>* stream) = 0;
};

// A device in host memory with `capacity_bytes`; the reference that CUDA must equal.
std::unique_ptr<Device> CreateHostTwin(size_t capacity_bytes);

// The CUDA devices that this build and this machine have. kUnavailable, and an empty list, where
// there are none: the message says whether the build, the driver or the device is missing.
Status CudaDevices(std::vector<std::unique_ptr<Device>>* devices);

}  // namespace terrace::kernels
