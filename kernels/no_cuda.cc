// Takes the place of cuda_device.cu in a build without nvcc.
#include "kernels/device.h"

namespace terrace::kernels {

Status CudaDevices(std::vector<std::unique_ptr<Device>>* devices) {
  devices->clear();
  return {Code::kUnavailable,
          "this build has no CUDA backend (nvcc was not found when it was built)"};
}

}  // namespace terrace::kernels
