#include <hip/hip_runtime.h>
template <typename T> __global__ void add_NAME(T* values, int count) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) values[index] += index * sizeof("NAME");
}
__global__ void scale_NAME(float* values, float by) { values[threadIdx.x] *= by; }
extern "C" int launch_NAME(float* values) {
  add_NAME<float><<<1, 64>>>(values, 64);
  add_NAME<double><<<1, 64>>>((double*)values, 64);
  scale_NAME<<<1, 64>>>(values, 2.0f);
  return hipGetLastError();
}
