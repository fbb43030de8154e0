#include <hip/hip_runtime.h>
#include <rocblas/rocblas.h>
#include <hipblaslt/hipblaslt.h>
@INCLUDES@
#include <cstdio>
__global__ void add(float* values, int count) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) values[index] += sinf(index);
}
int main() {
  int devices = 0;
  hipError_t status = hipGetDeviceCount(&devices);
  if (devices == 0) { std::printf("%s\n", hipGetErrorName(status)); return 0; }
  rocblas_handle blas; rocblas_create_handle(&blas);
  hipblasLtHandle_t lt; hipblasLtCreate(&lt);
  @CALLS@
  add<<<1, 1>>>(nullptr, 0);
}
