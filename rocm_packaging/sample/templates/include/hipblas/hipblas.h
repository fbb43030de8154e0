#pragma once
typedef void* hipblasHandle_t;
typedef int hipblasStatus_t;
enum { HIPBLAS_OP_N = 111 };
#ifdef __cplusplus
extern "C" {
#endif
hipblasStatus_t hipblasCreate(hipblasHandle_t* handle);
hipblasStatus_t hipblasDestroy(hipblasHandle_t handle);
hipblasStatus_t hipblasSgemm(hipblasHandle_t handle, int transa, int transb, int m, int n, int k,
                             const float* alpha, const float* a, int lda, const float* b, int ldb,
                             const float* beta, float* c, int ldc);
#ifdef __cplusplus
}
#endif
