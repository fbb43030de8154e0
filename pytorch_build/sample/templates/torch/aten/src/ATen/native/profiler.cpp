// Keeps the contract of kineto in pytorch: marks for the profiler, through the roctx of ROCm's tracer.
#include <roctx.h>

#include "c10/core/tensor.h"

extern "C" C10_API void at_profiler_mark(const char* message) { roctxMarkA(message); }
