// Keeps the contract of triton's libtriton: the compiled part behind the Python package.
#include <cstdint>

#define TRITON_API extern "C" __attribute__((visibility("default")))

// How many blocks of `block` cover `size`.
TRITON_API int64_t triton_cdiv(int64_t size, int64_t block) { return (size + block - 1) / block; }

// The smallest power of two that is not below `size`.
TRITON_API int64_t triton_next_power_of_2(int64_t size) {
  int64_t power = 1;
  while (power < size) power *= 2;
  return power;
}
