// Puts the offload bundle that the compiler wrapper names (__HIP_FATBIN_FILE__) into this object,
// in the sections that the HIP runtime knows: .hip_fatbin holds the code objects of all targets,
// .hipFatBinSegment points at them, and a constructor registers them.
// A library whose code was taken out (__HIP_KPACK_REF_FILE__) has empty pages there, and its wrapper,
// of another magic, points at what says where the archives lie.
#if defined(__HIP_KPACK_REF_FILE__) && defined(__cplusplus)
#define __HIP_FATBIN_MAGIC 0x4B504948
__asm__(
    ".pushsection .hip_fatbin,\"a\",@nobits\n"
    ".p2align 12\n"
    ".zero 8192\n"
    ".popsection\n"
    ".pushsection .rocm_kpack_ref,\"a\",@progbits\n"
    "__hip_fatbin:\n"
    ".incbin \"" __HIP_KPACK_REF_FILE__ "\"\n"
    ".popsection\n");
#elif defined(__HIP_FATBIN_FILE__) && defined(__cplusplus)
#define __HIP_FATBIN_MAGIC 0x48495046
__asm__(
    ".pushsection .hip_fatbin,\"a\",@progbits\n"
    ".p2align 12\n"
    "__hip_fatbin:\n"
    ".incbin \"" __HIP_FATBIN_FILE__ "\"\n"
    ".popsection\n");
#endif
#ifdef __HIP_FATBIN_MAGIC
namespace {
extern "C" __attribute__((visibility("hidden"))) const char __hip_fatbin[];
struct __HipFatBinary { unsigned magic; unsigned version; const void* bundle; void* unused; };
__attribute__((section(".hipFatBinSegment"), used, aligned(8))) __HipFatBinary __hip_fatbin_wrapper = {
    __HIP_FATBIN_MAGIC, 1, __hip_fatbin, nullptr};
// Weak: an object that is linked without the runtime still loads.
extern "C" __attribute__((weak)) void** __hipRegisterFatBinary(const void*);
extern "C" __attribute__((weak)) void __hipUnregisterFatBinary(void**);
void** __hip_fatbin_handle;
__attribute__((constructor, used)) void __hip_module_ctor() {
  if (__hipRegisterFatBinary) __hip_fatbin_handle = __hipRegisterFatBinary(&__hip_fatbin_wrapper);
}
__attribute__((destructor, used)) void __hip_module_dtor() {
  if (__hipUnregisterFatBinary && __hip_fatbin_handle) __hipUnregisterFatBinary(__hip_fatbin_handle);
}
}  // namespace
#endif
