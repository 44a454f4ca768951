# OpenBLAS for products in fp64, and LAPACKE above it for eigenvectors. Debian's OpenBLAS brings no CMake files and no
# LAPACKE, so the three pieces are looked for by name. LAPACKE stands before OpenBLAS: the LAPACK that it calls is then
# OpenBLAS's own and not the reference one (n = 1024: 1.1 s instead of 3.1 s).
find_path(OPENBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas)
find_path(LAPACKE_INCLUDE_DIR lapacke.h PATH_SUFFIXES openblas lapacke)
find_library(OPENBLAS_LIBRARY openblas)
find_library(LAPACKE_LIBRARY lapacke)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OpenBLAS
  REQUIRED_VARS OPENBLAS_LIBRARY LAPACKE_LIBRARY OPENBLAS_INCLUDE_DIR LAPACKE_INCLUDE_DIR)
mark_as_advanced(OPENBLAS_INCLUDE_DIR LAPACKE_INCLUDE_DIR OPENBLAS_LIBRARY LAPACKE_LIBRARY)
if(OpenBLAS_FOUND AND NOT TARGET OpenBLAS::lapacke)
  add_library(OpenBLAS::lapacke INTERFACE IMPORTED)
  target_include_directories(OpenBLAS::lapacke INTERFACE ${OPENBLAS_INCLUDE_DIR} ${LAPACKE_INCLUDE_DIR})
  target_link_libraries(OpenBLAS::lapacke INTERFACE ${LAPACKE_LIBRARY} ${OPENBLAS_LIBRARY})
endif()
