# The miniature HIP package: target hip::host, and the variables that PyTorch reads.
get_filename_component(HIP_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(hip_VERSION 7.99.0)
set(hip_INCLUDE_DIR "${HIP_PREFIX}/include")
set(hip_LIB_INSTALL_DIR "${HIP_PREFIX}/lib")
set(HIP_COMPILER clang)
set(HIP_RUNTIME rocclr)
if(NOT TARGET hip::host)
  add_library(hip::host SHARED IMPORTED)
  set_target_properties(hip::host PROPERTIES
    IMPORTED_LOCATION "${HIP_PREFIX}/bin/amdhip64_7.dll"
    IMPORTED_IMPLIB "${HIP_PREFIX}/lib/amdhip64.lib"
    INTERFACE_INCLUDE_DIRECTORIES "${HIP_PREFIX}/include"
    INTERFACE_COMPILE_DEFINITIONS "__HIP_PLATFORM_AMD__=1")
endif()
