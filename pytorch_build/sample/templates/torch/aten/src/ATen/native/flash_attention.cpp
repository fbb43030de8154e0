// Keeps the contract of aotriton in pytorch: flash attention on ROCm needs the liblzma of rocm_sysdeps.
#include <lzma.h>

#include "c10/core/tensor.h"

extern "C" C10_API int64_t at_flash_attention_lzma_version() { return lzma_version_number(); }
