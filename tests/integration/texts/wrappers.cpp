#include <string.h>
__asm__(".pushsection .hip_fatbin,\"a\",@progbits\n.p2align 12\nfirst:\n.incbin \"first.hipfb\"\n"
        ".p2align 12\nsecond:\n.incbin \"second.hipfb\"\n.popsection\n");
extern const char first[] __attribute__((visibility("hidden")));
extern const char second[] __attribute__((visibility("hidden")));
struct Wrapper { unsigned magic, version; const void* code; unsigned long index; };
__attribute__((section(".hipFatBinSegment"), used)) struct Wrapper wrappers[3] = {
    {0x48495046, 1, second, 0}, {0x48495046, 1, first, 0}, {0x48495046, 1, first, 0}};
static const char* const text = "data that follows";
int wrapper_magic(int i) { return wrappers[i].magic; }
const void* wrapper_code(int i) { return wrappers[i].code; }
unsigned long wrapper_index(int i) { return wrappers[i].index; }
const char* after(void) { return text; }
