// Keeps the contract of torchvision's compiled part: operations on torch's tensors, linked to libtorch and libc10.
#include <torch/extension.h>

#include <algorithm>
#include <numeric>

using c10::Tensor;

namespace {

bool are_boxes(const Tensor* boxes) { return boxes->shape.size() == 2 && boxes->shape[1] == 4; }

double area(const float* box) { return (box[2] - box[0]) * (box[3] - box[1]); }

// Intersection over union of two boxes (x1, y1, x2, y2).
double iou(const float* a, const float* b) {
  const double width = std::min(a[2], b[2]) - std::max(a[0], b[0]);
  const double height = std::min(a[3], b[3]) - std::max(a[1], b[1]);
  if (width <= 0 || height <= 0) return 0;
  return width * height / (area(a) + area(b) - width * height);
}

}  // namespace

TORCH_EXTENSION Tensor* torchvision_box_iou(const Tensor* a, const Tensor* b) {
  if (!are_boxes(a) || !are_boxes(b)) return c10_error("box_iou: boxes have the shape (n, 4)");
  const int64_t shape[] = {a->shape[0], b->shape[0]};
  Tensor* out = c10_tensor_new(shape, 2);
  for (int64_t i = 0; i < shape[0]; ++i)
    for (int64_t j = 0; j < shape[1]; ++j)
      out->values[i * shape[1] + j] = iou(&a->values[4 * i], &b->values[4 * j]);
  return out;
}

// Indices of the boxes that stay, the best score first.
TORCH_EXTENSION Tensor* torchvision_nms(const Tensor* boxes, const Tensor* scores, double threshold) {
  if (!are_boxes(boxes) || scores->values.size() != std::size_t(boxes->shape[0]))
    return c10_error("nms: needs boxes of the shape (n, 4) and n scores");
  std::vector<int64_t> order(boxes->shape[0]), kept;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t i, int64_t j) { return scores->values[i] > scores->values[j]; });
  for (int64_t i : order) {
    const auto covers = [&](int64_t j) { return iou(&boxes->values[4 * i], &boxes->values[4 * j]) > threshold; };
    if (std::none_of(kept.begin(), kept.end(), covers)) kept.push_back(i);
  }
  const int64_t count = kept.size();
  Tensor* out = c10_tensor_new(&count, 1);
  std::copy(kept.begin(), kept.end(), out->values.begin());
  return out;
}
