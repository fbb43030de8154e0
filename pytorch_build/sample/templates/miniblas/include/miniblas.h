// Keeps the contract of a torch submodule (as third_party/fbgemm): C++ for torch, CUDA spelling that gets hipified.
#pragma once
#include <cstdint>

namespace miniblas {

// c (m x n) = a (m x k) * b (k x n), all row-major.
void gemm(int64_t m, int64_t k, int64_t n, const float* a, const float* b, float* c);

}  // namespace miniblas
