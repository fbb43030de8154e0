// Keeps the contract of pytorch's c10: the library that every other one and every extension links to.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#ifdef _WIN32
#define C10_API __declspec(dllexport)
#else
#define C10_API __attribute__((visibility("default")))
#endif

namespace c10 {

// Dense, row-major values in single precision.
struct Tensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

int64_t numel(const std::vector<int64_t>& shape);

}  // namespace c10

extern "C" {
// A new tensor of zeros, to be given back with c10_tensor_free.
C10_API c10::Tensor* c10_tensor_new(const int64_t* shape, int64_t dim);
C10_API void c10_tensor_free(c10::Tensor* tensor);
C10_API int64_t c10_tensor_dim(const c10::Tensor* tensor);
C10_API const int64_t* c10_tensor_shape(const c10::Tensor* tensor);
C10_API int64_t c10_tensor_numel(const c10::Tensor* tensor);
C10_API float* c10_tensor_data(c10::Tensor* tensor);
// Notes why an operation gives no tensor; gives null, for `return c10_error(...)`.
C10_API c10::Tensor* c10_error(const char* message);
C10_API const char* c10_last_error();
}
