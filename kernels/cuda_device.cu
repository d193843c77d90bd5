#include <cuda_runtime.h>

#include "kernels/device.h"

namespace terrace::kernels {
namespace {

Status FromCuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return {};
  const std::string message = std::string(call) + ": " + cudaGetErrorString(error);
  switch (error) {
    case cudaErrorMemoryAllocation:
      // Clears the sticky last-error, which a refused allocation leaves behind.
      (void)cudaGetLastError();
      return {Code::kOutOfMemory, message};
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorSystemNotReady:
      return {Code::kUnavailable, message};
    case cudaErrorInvalidValue:
      return {Code::kInvalidArgument, message};
    default:
      return {Code::kInternal, message};
  }
}

class CudaEvent : public Event {
 public:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  ~CudaEvent() override { (void)cudaEventDestroy(event_); }
  bool done() const override { return cudaEventQuery(event_) == cudaSuccess; }
  Status Synchronize() override {
    return FromCuda(cudaEventSynchronize(event_), "cudaEventSynchronize");
  }
  cudaEvent_t get() const { return event_; }

 private:
  const cudaEvent_t event_;
};

class CudaStream : public Stream {
 public:
  CudaStream(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  ~CudaStream() override { (void)cudaStreamDestroy(stream_); }

  Status Copy(void* to, const void* from, size_t bytes) override {
    // The direction follows from the addresses (unified addressing, every 64-bit platform).
    return FromCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_),
                    "cudaMemcpyAsync");
  }
  Status WaitFor(const Event& event) override {
    const auto& cuda_event = static_cast<const CudaEvent&>(event);
    return FromCuda(cudaStreamWaitEvent(stream_, cuda_event.get(), 0), "cudaStreamWaitEvent");
  }
  Status Record(std::unique_ptr<Event>* event) override {
    if (Status s = FromCuda(cudaSetDevice(device_), "cudaSetDevice"); !s.ok()) return s;
    cudaEvent_t created;
    if (Status s =
            FromCuda(cudaEventCreateWithFlags(&created, cudaEventDisableTiming), "cudaEventCreate");
        !s.ok()) {
      return s;
    }
    *event = std::make_unique<CudaEvent>(created);
    return FromCuda(cudaEventRecord(created, stream_), "cudaEventRecord");
  }
  Status Synchronize() override {
    return FromCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

 private:
  const int device_;
  const cudaStream_t stream_;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int device) : device_(device) {}

  Status Info(DeviceInfo* info) const override {
    if (Status s = Select(); !s.ok()) return s;
    cudaDeviceProp properties;
    if (Status s =
            FromCuda(cudaGetDeviceProperties(&properties, device_), "cudaGetDeviceProperties");
        !s.ok()) {
      return s;
    }
    info->name = "cuda:" + std::to_string(device_) + " " + properties.name;
    return FromCuda(cudaMemGetInfo(&info->free_bytes, &info->total_bytes), "cudaMemGetInfo");
  }

  Status Allocate(MemoryKind kind, size_t bytes, void** memory) override {
    *memory = nullptr;
    if (bytes == 0) return {Code::kInvalidArgument, "allocation of 0 bytes"};
    if (Status s = Select(); !s.ok()) return s;
    // Plain allocations only: managed memory may hang a device that is short of it.
    return kind == MemoryKind::kDevice ? FromCuda(cudaMalloc(memory, bytes), "cudaMalloc")
                                       : FromCuda(cudaMallocHost(memory, bytes), "cudaMallocHost");
  }

  Status Free(MemoryKind kind, void* memory) override {
    if (memory == nullptr) return {};
    if (Status s = Select(); !s.ok()) return s;
    return kind == MemoryKind::kDevice ? FromCuda(cudaFree(memory), "cudaFree")
                                       : FromCuda(cudaFreeHost(memory), "cudaFreeHost");
  }

  Status CreateStream(std::unique_ptr<Stream>* stream) override {
    if (Status s = Select(); !s.ok()) return s;
    cudaStream_t created;
    if (Status s = FromCuda(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking),
                            "cudaStreamCreate");
        !s.ok()) {
      return s;
    }
    *stream = std::make_unique<CudaStream>(device_, created);
    return {};
  }

 private:
  Status Select() const { return FromCuda(cudaSetDevice(device_), "cudaSetDevice"); }

  const int device_;
};

}  // namespace

Status CudaDevices(std::vector<std::unique_ptr<Device>>* devices) {
  devices->clear();
  int count = 0;
  if (Status s = FromCuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount"); !s.ok()) return s;
  for (int i = 0; i < count; ++i) devices->push_back(std::make_unique<CudaDevice>(i));
  if (devices->empty()) return {Code::kUnavailable, "the driver reports no CUDA device"};
  return {};
}

}  // namespace terrace::kernels
