// Keeps the contract of pytorch's CUDA sources: build_amd.py makes ../hip/elementwise.hip of this file.
#include <cuda_runtime.h>

#include <cstdint>

#include "c10/core/tensor.h"
#include "device_buffer.h"

__global__ void add_kernel(const float* a, const float* b, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

extern "C" {

C10_API const char* at_cuda_arch_flags() { return TORCH_ARCH_FLAGS; }

C10_API int at_cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();  // asking is no error that a later call should find
  return 0;
}

// out = a + b on the first GPU; 0 where the device did it.
C10_API int at_cuda_add(const float* a, const float* b, float* out, int64_t count) {
  const std::size_t bytes = count * sizeof(float);
  miniblas::DeviceBuffer x(count), y(count), z(count);
  if (!x.data || !y.data || !z.data) return 1;
  if (cudaMemcpy(x.data, a, bytes, cudaMemcpyHostToDevice) != cudaSuccess) return 1;
  if (cudaMemcpy(y.data, b, bytes, cudaMemcpyHostToDevice) != cudaSuccess) return 1;
  add_kernel<<<1, 1, 0, nullptr>>>(x.data, y.data, z.data, count);
  if (cudaGetLastError() != cudaSuccess) return 1;
  return cudaMemcpy(out, z.data, bytes, cudaMemcpyDeviceToHost) == cudaSuccess ? 0 : 1;
}
}
