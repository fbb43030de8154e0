// Keeps the contract of apex's --cpp_ext: fused operations on torch's tensors, linked to libtorch and libc10.
#include <torch/extension.h>

using c10::Tensor;

// max(a * x + b, 0) in one pass.
TORCH_EXTENSION Tensor* apex_fused_scale_bias_relu(const Tensor* x, double a, double b) {
  Tensor* out = c10_tensor_new(x->shape.data(), x->shape.size());
  for (std::size_t i = 0; i < out->values.size(); ++i) {
    const double value = a * x->values[i] + b;
    out->values[i] = value > 0 ? value : 0;
  }
  return out;
}
