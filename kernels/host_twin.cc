#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "kernels/device.h"

namespace terrace::kernels {
namespace {

constexpr size_t kAlignment = 256;

// Work of the twin happens at once, so every event is done when it is recorded.
class HostEvent : public Event {
 public:
  bool done() const override { return true; }
  Status Synchronize() override { return {}; }
};

class HostStream : public Stream {
 public:
  Status Copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0 && (to == nullptr || from == nullptr)) {
      return {Code::kInvalidArgument, "copy from or to null"};
    }
    if (bytes > 0) std::memmove(to, from, bytes);
    return {};
  }
  Status WaitFor(const Event&) override { return {}; }
  Status Record(std::unique_ptr<Event>* event) override {
    *event = std::make_unique<HostEvent>();
    return {};
  }
  Status Synchronize() override { return {}; }
};

class HostTwin : public Device {
 public:
  explicit HostTwin(size_t capacity_bytes) : capacity_(capacity_bytes) {}
  ~HostTwin() override {
    for (const auto& [memory, bytes] : sizes_) std::free(memory);
  }

  Status Info(DeviceInfo* info) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    *info = {"host-twin", capacity_, capacity_ - used_};
    return {};
  }

  Status Allocate(MemoryKind kind, size_t bytes, void** memory) override {
    *memory = nullptr;
    if (bytes == 0) return {Code::kInvalidArgument, "allocation of 0 bytes"};
    std::lock_guard<std::mutex> lock(mutex_);
    // Only device memory counts against the twin's capacity, as on a real device.
    const size_t charge = kind == MemoryKind::kDevice ? bytes : 0;
    if (charge > capacity_ - used_) {
      return {Code::kOutOfMemory, "host-twin: " + std::to_string(bytes) + " bytes asked for, " +
                                      std::to_string(capacity_ - used_) + " free"};
    }
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* taken = std::aligned_alloc(kAlignment, rounded);
    if (taken == nullptr) return {Code::kOutOfMemory, "host memory is exhausted"};
    used_ += charge;
    sizes_.emplace(taken, charge);
    *memory = taken;
    return {};
  }

  Status Free(MemoryKind, void* memory) override {
    if (memory == nullptr) return {};
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = sizes_.find(memory);
    if (found == sizes_.end()) return {Code::kInvalidArgument, "not memory of this device"};
    used_ -= found->second;
    sizes_.erase(found);
    std::free(memory);
    return {};
  }

  Status CreateStream(std::unique_ptr<Stream>* stream) override {
    *stream = std::make_unique<HostStream>();
    return {};
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  size_t used_ = 0;
  std::unordered_map<void*, size_t> sizes_;  // what each allocation was charged
};

}  // namespace

std::unique_ptr<Device> CreateHostTwin(size_t capacity_bytes) {
  return std::make_unique<HostTwin>(capacity_bytes);
}

}  // namespace terrace::kernels
