// Keeps the contract of torchaudio's compiled part: operations on torch's tensors, linked to libtorch and libc10.
#include <torch/extension.h>

#include <algorithm>
#include <cmath>

using c10::Tensor;

// multiplier * log10(max(amplitude, amin)) - multiplier * db, element by element.
TORCH_EXTENSION Tensor* torchaudio_amplitude_to_db(const Tensor* x, double multiplier, double amin, double db) {
  Tensor* out = c10_tensor_new(x->shape.data(), x->shape.size());
  for (std::size_t i = 0; i < out->values.size(); ++i)
    out->values[i] = multiplier * (std::log10(std::max(double(x->values[i]), amin)) - db);
  return out;
}

// A waveform at another rate, by linear interpolation.
TORCH_EXTENSION Tensor* torchaudio_resample(const Tensor* x, int64_t rate, int64_t new_rate) {
  if (x->shape.size() != 1 || x->shape[0] == 0 || rate <= 0 || new_rate <= 0)
    return c10_error("resample: needs one channel with samples, and positive rates");
  const int64_t last = x->shape[0] - 1, length = (x->shape[0] * new_rate + rate - 1) / rate;
  Tensor* out = c10_tensor_new(&length, 1);
  for (int64_t i = 0; i < length; ++i) {
    const double at = std::min(double(i) * rate / new_rate, double(last));
    const int64_t left = int64_t(at), right = std::min(left + 1, last);
    out->values[i] = x->values[left] + (at - left) * (x->values[right] - x->values[left]);
  }
  return out;
}
