# The backend for NVIDIA's GPUs, and the tests of its kernels on the CPU. AUTO is meant to be the default once the backend
# has been run and measured on a GPU.
set(SHOAL_CUDA OFF CACHE STRING "The CUDA backend: AUTO (where nvcc and cuBLASLt are found), ON or OFF")
if(SHOAL_CUDA STREQUAL "OFF")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # Machine code for Ampere and Hopper, and PTX that the driver compiles for what comes later.
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(SHOAL_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(SHOAL_NVCC)
    set(CMAKE_CUDA_COMPILER ${SHOAL_NVCC})
  endif()
endif()
include(CheckLanguage)
check_language(CUDA)
find_package(CUDAToolkit QUIET)
if(NOT CMAKE_CUDA_COMPILER OR NOT TARGET CUDA::cublasLt)
  if(SHOAL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SHOAL_CUDA=ON, but nvcc or cuBLASLt was not found (CUDACXX, CUDAToolkit_ROOT)")
  endif()
  message(STATUS "CUDA backend: no")
  return()
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know yet that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)

file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/ops/cuda/*.cpp ${PROJECT_SOURCE_DIR}/src/ops/cuda/*.cu)
add_library(shoal_ops_cuda STATIC ${cuda_sources})
# Where CUDA has no static cuBLASLt, the shared one is found by the path that it was linked from.
set(cublas $<IF:$<TARGET_EXISTS:CUDA::cublasLt_static>,CUDA::cublasLt_static,CUDA::cublasLt>)
target_link_libraries(shoal_ops_cuda PUBLIC shoal_options shoal_core CUDA::cudart_static ${cublas})
target_compile_options(shoal_ops_cuda PRIVATE
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=-Wall$<$<BOOL:${SHOAL_WERROR}>:;-Werror=all-warnings>>")
set(SHOAL_HAVE_CUDA TRUE)
message(STATUS "CUDA backend: ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
