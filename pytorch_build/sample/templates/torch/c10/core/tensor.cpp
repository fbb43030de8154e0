// Keeps the contract of pytorch's c10: storage, and errors that cross library borders.
#include "c10/core/tensor.h"

#include <string>

namespace {
thread_local std::string last_error;
}

int64_t c10::numel(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

c10::Tensor* c10_tensor_new(const int64_t* shape, int64_t dim) {
  auto* tensor = new c10::Tensor;
  tensor->shape.assign(shape, shape + dim);
  tensor->values.assign(c10::numel(tensor->shape), 0.0f);
  return tensor;
}

void c10_tensor_free(c10::Tensor* tensor) { delete tensor; }
int64_t c10_tensor_dim(const c10::Tensor* tensor) { return tensor->shape.size(); }
const int64_t* c10_tensor_shape(const c10::Tensor* tensor) { return tensor->shape.data(); }
int64_t c10_tensor_numel(const c10::Tensor* tensor) { return tensor->values.size(); }
float* c10_tensor_data(c10::Tensor* tensor) { return tensor->values.data(); }

c10::Tensor* c10_error(const char* message) {
  last_error = message;
  return nullptr;
}

const char* c10_last_error() { return last_error.c_str(); }
