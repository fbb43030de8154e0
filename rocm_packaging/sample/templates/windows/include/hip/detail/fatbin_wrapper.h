// Puts the offload bundle that the compiler wrapper names (__HIP_FATBIN_FILE__) into this object,
// in the sections that the HIP runtime knows of a PE file, whose names have eight letters: .hip_fat holds
// the code objects of all targets, .hipFatB points at them, and a constructor registers them.
// A library whose code was taken out (__HIP_KPACK_REF_FILE__) has empty pages there, and its wrapper,
// of another magic, points at what says where the archives lie.
#if defined(__HIP_KPACK_REF_FILE__) && defined(__cplusplus)
#define __HIP_FATBIN_MAGIC 0x4B504948
__asm__(
    ".section .hip_fat,\"b\"\n"
    ".p2align 12\n"
    ".zero 8192\n"
    ".section .kpackrf,\"dr\"\n"
    "__hip_fatbin:\n"
    ".incbin \"" __HIP_KPACK_REF_FILE__ "\"\n"
    ".text\n");
#elif defined(__HIP_FATBIN_FILE__) && defined(__cplusplus)
#define __HIP_FATBIN_MAGIC 0x48495046
__asm__(
    ".section .hip_fat,\"dr\"\n"
    ".p2align 12\n"
    "__hip_fatbin:\n"
    ".incbin \"" __HIP_FATBIN_FILE__ "\"\n"
    ".text\n");
#endif
#ifdef __HIP_FATBIN_MAGIC
namespace {
extern "C" const char __hip_fatbin[];
struct __HipFatBinary { unsigned magic; unsigned version; const void* bundle; void* unused; };
__attribute__((section(".hipFatB"), used, aligned(8))) __HipFatBinary __hip_fatbin_wrapper = {
    __HIP_FATBIN_MAGIC, 1, __hip_fatbin, nullptr};
extern "C" void** __hipRegisterFatBinary(const void*);
extern "C" void __hipUnregisterFatBinary(void**);
void** __hip_fatbin_handle;
__attribute__((constructor, used)) void __hip_module_ctor() {
  __hip_fatbin_handle = __hipRegisterFatBinary(&__hip_fatbin_wrapper);
}
__attribute__((destructor, used)) void __hip_module_dtor() { __hipUnregisterFatBinary(__hip_fatbin_handle); }
}  // namespace
#endif
