#pragma once
#ifdef __cplusplus
extern "C" {
#endif
int roctxRangePushA(const char* message);
int roctxRangePop(void);
void roctxMarkA(const char* message);
#ifdef __cplusplus
}
#endif
