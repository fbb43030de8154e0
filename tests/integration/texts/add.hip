#include <hip/hip_runtime.h>
__global__ void add(float* values, int count) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) values[index] += index;
}
extern "C" int run() {
  float values[6] = {0};
  hipLaunchKernelGGL(add, dim3(2), dim3(4), 0, nullptr, values, 6);
  return static_cast<int>(values[5]) * 100 + HIP_VERSION_MAJOR;
}
