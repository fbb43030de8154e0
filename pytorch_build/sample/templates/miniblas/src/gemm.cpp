// Keeps the contract of a torch submodule: torch's CMakeLists.txt compiles it.
#include "miniblas.h"

#include <algorithm>

#include "minivec.h"

namespace miniblas {

void gemm(int64_t m, int64_t k, int64_t n, const float* a, const float* b, float* c) {
  std::fill(c, c + m * n, 0.0f);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < k; ++j) minivec::axpy(n, a[i * k + j], b + j * n, c + i * n);
}

}  // namespace miniblas
