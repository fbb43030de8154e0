// Keeps the contract of a nested submodule (third_party/X/third_party/Y): sources only, no build of its own.
#pragma once
#include <cstdint>

namespace minivec {

// y += alpha * x, over n values.
void axpy(int64_t n, float alpha, const float* x, float* y);

}  // namespace minivec
