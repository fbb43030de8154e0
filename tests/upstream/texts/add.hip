#include <hip/hip_runtime.h>
#include <cstdio>
__global__ void add(float* values, int count) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) values[index] += index;
}
int main() {
  int devices = 0;
  hipError_t status = hipGetDeviceCount(&devices);
  std::printf("%s %d\n", hipGetErrorName(status), devices);
  if (devices > 0) add<<<1, 1>>>(nullptr, 0);
}
