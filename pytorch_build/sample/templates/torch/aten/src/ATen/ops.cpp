// Keeps the contract of pytorch's libtorch: operations behind plain C names, called from Python through ctypes.
#include <cmath>
#include <numeric>

#include "c10/core/tensor.h"
#ifdef USE_OPENBLAS
#include <cblas.h>
#else
#include "miniblas.h"
#endif

using c10::Tensor;

namespace {

Tensor* like(const Tensor* tensor) { return c10_tensor_new(tensor->shape.data(), tensor->shape.size()); }

// c (m x n) = a (m x k) * b (k x n), by the BLAS that torch was built with.
void gemm(int64_t m, int64_t k, int64_t n, const float* a, const float* b, float* c) {
#ifdef USE_OPENBLAS
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1.0f, a, k, b, n, 0.0f, c, n);
#else
  miniblas::gemm(m, k, n, a, b, c);
#endif
}

double apply(char op, double x) {
  switch (op) {
    case 'a': return std::fabs(x);
    case 'e': return std::exp(x);
    case 'n': return -x;
    case 'r': return x > 0 ? x : 0;
    default: return std::sqrt(x);
  }
}

double apply(char op, double x, double y) {
  switch (op) {
    case '+': return x + y;
    case '-': return x - y;
    case '*': return x * y;
    default: return x / y;
  }
}

}  // namespace

extern "C" {

C10_API Tensor* at_mm(const Tensor* a, const Tensor* b) {
  if (a->shape.size() != 2 || b->shape.size() != 2 || a->shape[1] != b->shape[0])
    return c10_error("mm: shapes are not (m, k) and (k, n)");
  const int64_t shape[] = {a->shape[0], b->shape[1]};
  Tensor* out = c10_tensor_new(shape, 2);
  gemm(a->shape[0], a->shape[1], b->shape[1], a->values.data(), b->values.data(), out->values.data());
  return out;
}

// Element by element; a tensor without dimensions goes with every shape.
C10_API Tensor* at_binary(char op, const Tensor* a, const Tensor* b) {
  const bool spread_a = a->shape.empty(), spread_b = b->shape.empty();
  if (!spread_a && !spread_b && a->shape != b->shape) return c10_error("element-wise operation on different shapes");
  Tensor* out = like(spread_a ? b : a);
  for (std::size_t i = 0; i < out->values.size(); ++i)
    out->values[i] = apply(op, a->values[spread_a ? 0 : i], b->values[spread_b ? 0 : i]);
  return out;
}

C10_API Tensor* at_unary(char op, const Tensor* a) {
  Tensor* out = like(a);
  for (std::size_t i = 0; i < out->values.size(); ++i) out->values[i] = apply(op, a->values[i]);
  return out;
}

C10_API Tensor* at_t(const Tensor* a) {
  if (a->shape.size() != 2) return c10_error("t: the tensor has not two dimensions");
  const int64_t rows = a->shape[0], columns = a->shape[1], shape[] = {columns, rows};
  Tensor* out = c10_tensor_new(shape, 2);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) out->values[j * rows + i] = a->values[i * columns + j];
  return out;
}

C10_API Tensor* at_sum(const Tensor* a) {
  Tensor* out = c10_tensor_new(nullptr, 0);
  out->values[0] = std::accumulate(a->values.begin(), a->values.end(), 0.0);
  return out;
}

C10_API const char* at_config_show() { return TORCH_CONFIG_SHOW; }
}
