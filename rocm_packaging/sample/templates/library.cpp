// Every library of the sample is this file, compiled once for each name with
// -DLIBRARY="name" and -DIN_name. A library exports its name, and the functions of its block.
#include <stddef.h>

#ifdef _WIN32
#define EXPORT extern "C" __declspec(dllexport)
#define PER_THREAD  // a DLL of MinGW would need a library for it
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#define PER_THREAD __thread
#endif

EXPORT const char* rocm_sample_library() { return LIBRARY; }

#ifdef HAS_FATBIN
#include "hip/detail/fatbin_wrapper.h"
#endif

#ifdef IN_amdhip64
#include <stdlib.h>
#include <string.h>
#include "hip/hip_runtime_api.h"

static PER_THREAD hipError_t last_error = hipSuccess;
static hipError_t keep(hipError_t error) {
  if (error != hipSuccess) last_error = error;
  return error;
}

EXPORT hipError_t hipRuntimeGetVersion(int* version) {
  *version = HIP_VERSION;
  return hipSuccess;
}
// There is no device. Memory and kernels of the sample live on the host.
EXPORT hipError_t hipGetDeviceCount(int* count) {
  *count = 0;
  return keep(hipErrorNoDevice);
}
EXPORT hipError_t hipGetDevice(int* device) {
  *device = 0;
  return keep(hipErrorNoDevice);
}
EXPORT hipError_t hipSetDevice(int) { return keep(hipErrorNoDevice); }
EXPORT hipError_t hipMalloc(void** pointer, size_t size) {
  *pointer = malloc(size);
  return *pointer || !size ? hipSuccess : keep(hipErrorOutOfMemory);
}
EXPORT hipError_t hipFree(void* pointer) {
  free(pointer);
  return hipSuccess;
}
EXPORT hipError_t hipMemcpy(void* to, const void* from, size_t size, hipMemcpyKind) {
  memcpy(to, from, size);
  return hipSuccess;
}
EXPORT hipError_t hipMemset(void* to, int value, size_t size) {
  memset(to, value, size);
  return hipSuccess;
}
EXPORT hipError_t hipDeviceSynchronize() { return hipSuccess; }
EXPORT hipError_t hipPeekAtLastError() { return last_error; }
EXPORT hipError_t hipGetLastError() {
  hipError_t error = last_error;
  last_error = hipSuccess;
  return error;
}
EXPORT const char* hipGetErrorString(hipError_t error) {
  switch (error) {
    case hipSuccess: return "no error";
    case hipErrorNoDevice: return "no ROCm-capable device is detected";
    case hipErrorOutOfMemory: return "out of memory";
    default: return "unknown error";
  }
}

struct FatBinary { unsigned magic; unsigned version; const void* bundle; void* unused; };
static int registered = 0;
EXPORT void** __hipRegisterFatBinary(const void* wrapper) {
  const FatBinary* binary = static_cast<const FatBinary*>(wrapper);
  bool taken_out = binary->magic == 0x4B504948;  // what is there then is a map in MessagePack, of two entries
  if (!taken_out && binary->magic != 0x48495046) abort();
  bool compressed = !taken_out && !memcmp(binary->bundle, "CCOB", 4);
  if (!compressed && memcmp(binary->bundle, taken_out ? "\x82" : "__CLANG_OFFLOAD_BUNDLE__", taken_out ? 1 : 24)) abort();
  ++registered;
  return static_cast<void**>(const_cast<void*>(wrapper));
}
EXPORT void __hipUnregisterFatBinary(void**) { --registered; }
EXPORT int rocm_sample_registered() { return registered; }
#endif

#ifdef IN_hiprtc
EXPORT int hiprtcVersion(int* major, int* minor) { *major = 7; *minor = 99; return 0; }
#endif

#ifdef IN_amd_comgr
EXPORT void amd_comgr_get_version(size_t* major, size_t* minor) { *major = 3; *minor = 0; }
#endif

#ifdef IN_rocm_sysdeps_liblzma
EXPORT unsigned lzma_version_number() { return 50080002u; }
#endif

#ifdef IN_roctx64
EXPORT int roctxRangePushA(const char* message) { return message ? 0 : -1; }
EXPORT int roctxRangePop() { return 0; }
EXPORT void roctxMarkA(const char*) {}
#endif

#ifdef IN_amd_smi
EXPORT int amdsmi_init(unsigned long) { return 34; }  // no driver
EXPORT int amdsmi_shut_down() { return 0; }
#endif

#ifdef IN_rccl
EXPORT int ncclGetVersion(int* version) { *version = 22707; return 0; }
#endif

// Row-major C = alpha * A * B + beta * C.
static inline void multiply(long rows, long columns, long inner, float alpha, const float* a, long lda,
                            const float* b, long ldb, float beta, float* c, long ldc) {
  for (long i = 0; i < rows; ++i)
    for (long j = 0; j < columns; ++j) {
      float sum = 0;
      for (long k = 0; k < inner; ++k) sum += a[i * lda + k] * b[k * ldb + j];
      c[i * ldc + j] = alpha * sum + (beta ? beta * c[i * ldc + j] : 0);
    }
}

#ifdef IN_rocm_openblas
EXPORT void cblas_sgemm(int, int, int, int m, int n, int k, float alpha, const float* a, int lda,
                        const float* b, int ldb, float beta, float* c, int ldc) {
  multiply(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
EXPORT float cblas_sdot(int n, const float* x, int incx, const float* y, int incy) {
  float sum = 0;
  for (long i = 0; i < n; ++i) sum += x[i * incx] * y[i * incy];
  return sum;
}
EXPORT char* openblas_get_config() { return const_cast<char*>("OpenBLAS 0.3.30 sample"); }
#endif

#ifdef IN_hipblas
extern "C" int hipRuntimeGetVersion(int*);
EXPORT int hipblasCreate(void** handle) {
  static int version;
  *handle = &version;
  return hipRuntimeGetVersion(&version);
}
EXPORT int hipblasDestroy(void*) { return 0; }
// Column-major, as BLAS has it; transposition is not in the sample (7: not supported).
EXPORT int hipblasSgemm(void* handle, int transa, int transb, int m, int n, int k, const float* alpha,
                        const float* a, int lda, const float* b, int ldb, const float* beta, float* c,
                        int ldc) {
  if (!handle) return 1;
  if (transa != 111 || transb != 111) return 7;
  multiply(n, m, k, *alpha, b, ldb, a, lda, *beta, c, ldc);
  return 0;
}
#endif

#ifdef IN_hiprand
// A counter-based generator (splitmix64): the same seed gives the same numbers everywhere.
EXPORT void hiprand_sample_uniform(size_t seed, float* out, long count) {
  for (long i = 0; i < count; ++i) {
    size_t z = seed + 0x9E3779B97F4A7C15ull * (i + 1);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    out[i] = ((z ^ (z >> 31)) >> 40) / 16777216.0f;
  }
}
#endif

#ifdef IN_hipfft
// The two-point transform, in place, over interleaved complex pairs.
EXPORT void hipfft_sample_butterfly(float* pairs, long count) {
  for (long i = 0; i < count; ++i, pairs += 4)
    for (int part = 0; part < 2; ++part) {
      float a = pairs[part], b = pairs[part + 2];
      pairs[part] = a + b;
      pairs[part + 2] = a - b;
    }
}
#endif

#ifdef IN_miopen
EXPORT int miopenGetVersion(size_t* major, size_t* minor, size_t* patch) {
  *major = 3; *minor = 6; *patch = 0;
  return 0;
}
#endif
