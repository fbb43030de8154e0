// Keeps the contract of pytorch: stands for the module that upstream's torch/csrc/stub.c makes: compiled, beside the package's Python files.
#include "c10/core/tensor.h"

extern "C" const char* at_config_show();

extern "C" C10_API const char* torch_stub() { return at_config_show(); }
