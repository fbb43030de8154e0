# One CPU capability: the kernels are compiled once instead of three times.
foreach(kind AVX2 AVX512)
  set(CXX_${kind}_FOUND FALSE CACHE BOOL "")
  set(C_${kind}_FOUND FALSE CACHE BOOL "")
endforeach()
