#pragma once
#ifdef __cplusplus
extern "C" {
#endif
unsigned lzma_version_number(void);
#ifdef __cplusplus
}
#endif
