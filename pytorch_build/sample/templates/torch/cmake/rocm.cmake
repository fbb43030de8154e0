# Keeps the contract of pytorch's cmake/public/LoadHIP.cmake: ROCM_HOME's hipcc and libamdhip64, one
# --offload-arch for each gfx target of PYTORCH_ROCM_ARCH, HIP_VERSION and ROCM_VERSION from ROCm's headers.
if(NOT ROCM_HOME OR NOT PYTORCH_ROCM_ARCH)
  message(FATAL_ERROR "USE_ROCM needs ROCM_HOME and PYTORCH_ROCM_ARCH (gfx targets separated by ;).")
endif()

find_program(HIPCC hipcc HINTS ${ROCM_HOME}/bin NO_DEFAULT_PATH REQUIRED)
find_library(AMDHIP64 amdhip64 HINTS ${ROCM_HOME}/lib NO_DEFAULT_PATH)
find_package(hip CONFIG QUIET)
if(TARGET hip::host)
  set(AMDHIP64 hip::host)
elseif(NOT AMDHIP64)
  message(FATAL_ERROR "libamdhip64 is neither in ${ROCM_HOME}/lib nor does find_package(hip) know it.")
endif()

# Joins MAJOR, MINOR and PATCH macros of a header, as "7.1.2"; empty without the header.
function(read_version header prefix result)
  set(version "")
  if(EXISTS ${ROCM_HOME}/include/${header})
    file(READ ${ROCM_HOME}/include/${header} text)
    foreach(part MAJOR MINOR PATCH)
      if(text MATCHES "#define ${prefix}_${part} +([0-9]+)")
        list(APPEND version ${CMAKE_MATCH_1})
      endif()
    endforeach()
    list(JOIN version "." version)
  endif()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()
read_version(hip/hip_version.h HIP_VERSION HIP_VERSION)
read_version(rocm-core/rocm_version.h ROCM_VERSION ROCM_VERSION)
if(NOT HIP_VERSION)
  message(FATAL_ERROR "${ROCM_HOME}/include/hip/hip_version.h names no HIP version.")
endif()
if(NOT ROCM_VERSION)
  set(ROCM_VERSION ${HIP_VERSION})
endif()

list(TRANSFORM PYTORCH_ROCM_ARCH PREPEND "--offload-arch=" OUTPUT_VARIABLE OFFLOAD_ARCHS)
list(JOIN PYTORCH_ROCM_ARCH " " ARCH_FLAGS)
# A library of several fat binaries, as torch's: upstream compresses them where the compiler can.
foreach(unit elementwise reduce)
  set(HIP_SOURCE ${CMAKE_SOURCE_DIR}/aten/src/ATen/hip/${unit}.hip)
  if(NOT EXISTS ${HIP_SOURCE})
    message(FATAL_ERROR "The sources are not hipified: run python tools/amd_build/build_amd.py.")
  endif()
  set(COMPRESS $<$<STREQUAL:${unit},reduce>:--offload-compress>)
  add_custom_command(OUTPUT ${unit}.hip.o
    COMMAND ${HIPCC} ${OFFLOAD_ARCHS} ${COMPRESS} -O2 -std=c++17 -fPIC -fvisibility=hidden -DUSE_ROCM
      "-DTORCH_ARCH_FLAGS=\"${ARCH_FLAGS}\"" -I${CMAKE_SOURCE_DIR} -I${CMAKE_SOURCE_DIR}/${MINIBLAS}/cuda
      -c ${HIP_SOURCE} -o ${unit}.hip.o
    DEPENDS ${HIP_SOURCE} ${MINIBLAS}/cuda/device_buffer.h VERBATIM COMMAND_EXPAND_LISTS)
endforeach()
add_library(torch_hip SHARED elementwise.hip.o reduce.hip.o)
set_target_properties(torch_hip PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(torch_hip PRIVATE torch ${AMDHIP64})

# CXXFLAGS and LDFLAGS lead to the tracer's roctx.h and to ROCm's own liblzma, as kineto and aotriton expect.
if(USE_KINETO)
  find_library(ROCTX64 roctx64 HINTS ${ROCM_HOME}/lib NO_DEFAULT_PATH REQUIRED)
  target_sources(torch_hip PRIVATE aten/src/ATen/native/profiler.cpp)
  target_link_libraries(torch_hip PRIVATE ${ROCTX64})
endif()
if(USE_FLASH_ATTENTION)
  # On Windows aotriton brings a liblzma of its own.
  if(NOT WIN32)
    target_sources(torch_hip PRIVATE aten/src/ATen/native/flash_attention.cpp)
    target_link_libraries(torch_hip PRIVATE rocm_sysdeps_liblzma)
  endif()
  # aotriton's images: a folder a target, and for RDNA one a sub-family and one a family.
  string(REGEX REPLACE "--offload-arch=" "" IMAGES "${OFFLOAD_ARCHS}")
  string(REGEX REPLACE "gfx11([0-9])[0-9]" "gfx11\\1x;gfx11xx" IMAGES "${IMAGES}")
  string(REGEX REPLACE "gfx120[0-9]" "gfx120x" IMAGES "${IMAGES}")
  list(REMOVE_DUPLICATES IMAGES)
  foreach(gpu ${IMAGES})
    file(WRITE ${CMAKE_BINARY_DIR}/images/amd-${gpu}/flash/attn_fwd.aks2 "kernels for ${gpu}\n")
  endforeach()
  install(DIRECTORY ${CMAKE_BINARY_DIR}/images/ DESTINATION lib/aotriton.images)
endif()
