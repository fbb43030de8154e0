// Keeps the contract of a nested submodule: torch's CMakeLists.txt compiles it.
#include "minivec.h"

namespace minivec {

void axpy(int64_t n, float alpha, const float* x, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] += alpha * x[i];
}

}  // namespace minivec
