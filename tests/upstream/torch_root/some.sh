#!/bin/sh
# ninja for a part of torch: CMAKE_MAKE_PROGRAM=some.sh
#
# What CMake tries is built. What is to be installed is not: libc10_hip.so is linked, two kernels are compiled, without
# the libtorch_cpu.so that ninja would make before, and then the build ends as if it had failed.
case " $* " in *" install "*) ;; *) exec ninja "$@" ;; esac
objects=caffe2/CMakeFiles/torch_hip.dir/__/aten/src/ATen
ninja libc10_hip.so || exit
for name in hip/torch_hip_generated_Sleep native/hip/torch_hip_generated_FillKernel; do
    ninja -t commands -s "$objects/$name.hip.o" | sh || exit
done
echo "a part of torch is compiled"
exit 1
