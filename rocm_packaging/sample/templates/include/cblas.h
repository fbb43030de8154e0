#pragma once
enum { CblasRowMajor = 101, CblasNoTrans = 111 };
#ifdef __cplusplus
extern "C" {
#endif
void cblas_sgemm(int order, int transa, int transb, int m, int n, int k, float alpha, const float* a,
                 int lda, const float* b, int ldb, float beta, float* c, int ldc);
float cblas_sdot(int n, const float* x, int incx, const float* y, int incy);
#ifdef __cplusplus
}
#endif
