# The CUDA toolkit, its libraries, and the flags of CUDA sources. cudnn-frontend is header-only; ./dev unpacks its PyPI
# wheel into third_party/, which git ignores.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE capabilities OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0 AND capabilities MATCHES "^[0-9]")
    string(REGEX REPLACE "[.]" "" capabilities "${capabilities}")
    string(REGEX REPLACE "\n" ";" capabilities "${capabilities}")
    list(REMOVE_DUPLICATES capabilities)
    list(TRANSFORM capabilities REPLACE "^90$" "90a")
    set(CMAKE_CUDA_ARCHITECTURES ${capabilities})
  else()
    set(CMAKE_CUDA_ARCHITECTURES 90a)  # no GPU here: compile for Hopper all the same
  endif()
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc speaks C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
find_package(CUDAToolkit REQUIRED)

find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES x86_64-linux-gnu REQUIRED)
find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
  HINTS ${CMAKE_SOURCE_DIR}/third_party/cudnn_frontend/include REQUIRED)

add_library(inlay_cuda INTERFACE)
target_include_directories(inlay_cuda SYSTEM INTERFACE
  ${CUDAToolkit_INCLUDE_DIRS} ${CUDNN_INCLUDE} ${CUDNN_FRONTEND_INCLUDE})
# The other libraries are loaded when they are first called (backend/cuda/libraries.cu).
target_link_libraries(inlay_cuda INTERFACE CUDA::cudart_static ${CMAKE_DL_LIBS})
target_compile_options(inlay_cuda INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --extended-lambda -Xcompiler=-Wall>)
