get_filename_component(HIPBLAS_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET roc::hipblas)
  add_library(roc::hipblas SHARED IMPORTED)
  set_target_properties(roc::hipblas PROPERTIES
    IMPORTED_LOCATION "${HIPBLAS_PREFIX}/bin/hipblas.dll"
    IMPORTED_IMPLIB "${HIPBLAS_PREFIX}/lib/hipblas.lib"
    INTERFACE_INCLUDE_DIRECTORIES "${HIPBLAS_PREFIX}/include")
endif()
