// Keeps the contract of pytorch's torch/extension.h: the one header that extensions include.
#pragma once
#include <c10/core/tensor.h>

#define TORCH_EXTENSION extern "C" C10_API
