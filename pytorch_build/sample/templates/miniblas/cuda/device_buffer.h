// Keeps the contract of CUDA code in a submodule: build_amd.py rewrites this file in place.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>

namespace miniblas {

// Device memory of `count` values; `data` is null where the device refused.
struct DeviceBuffer {
  float* data = nullptr;
  explicit DeviceBuffer(std::size_t count) {
    if (cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(float)) != cudaSuccess) data = nullptr;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() {
    if (data) (void)cudaFree(data);
  }
};

}  // namespace miniblas
