// Keeps the contract of apex's --cuda_ext: CUDA sources that CUDAExtension hipifies.
#include <cuda_runtime.h>
#include <torch/extension.h>

__global__ void scale_kernel(float* values, float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] *= scale;
}

// Scales values that lie in device memory; 0 where the device did it.
TORCH_EXTENSION int amp_multi_tensor_scale(float* values, float scale, int64_t count) {
  scale_kernel<<<1, 1, 0, nullptr>>>(values, scale, count);
  return cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
}
