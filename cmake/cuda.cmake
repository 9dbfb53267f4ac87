# The backend for NVIDIA's GPUs, a module that the program loads where it is asked for.
set(SHOAL_CUDA AUTO CACHE STRING "The CUDA backend: AUTO (where nvcc and cuBLASLt are found), ON or OFF")
# Sanitizers do not know device code, nor the fibers that emulate it.
if(SHOAL_CUDA STREQUAL "OFF" OR (SHOAL_CUDA STREQUAL "AUTO" AND SHOAL_SANITIZE))
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
macro(shoal_without_cuda why)
  if(SHOAL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SHOAL_CUDA=ON, but ${why}")
  endif()
  message(STATUS "CUDA backend: no, ${why}")
  return()
endmacro()
if(NOT CMAKE_CUDA_COMPILER OR NOT TARGET CUDA::cublasLt)
  shoal_without_cuda("nvcc or cuBLASLt was not found (CUDACXX, CUDAToolkit_ROOT)")
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12)
  shoal_without_cuda("nvcc ${CMAKE_CUDA_COMPILER_VERSION} knows no C++20; 12.0 and newer do")
endif()
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know yet that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/ops/cuda/*.cpp ${PROJECT_SOURCE_DIR}/src/ops/cuda/*.cu)
# Those of the core's that it needs, since a static library is for programs.
set(SHOAL_CUDA_CORE ${PROJECT_SOURCE_DIR}/src/core/dtype.cpp ${PROJECT_SOURCE_DIR}/src/core/shared_table.cpp
                    ${PROJECT_SOURCE_DIR}/src/core/tensor.cpp)
add_library(shoal_cuda MODULE ${cuda_sources} ${SHOAL_CUDA_CORE})
# cuBLASLt is the shared one, of 500 MB, and found by the path that it was linked from.
target_link_libraries(shoal_cuda PRIVATE shoal_options fmt::fmt CUDA::cudart_static CUDA::cublasLt)
target_compile_options(shoal_cuda PRIVATE
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=-Wall$<$<BOOL:${SHOAL_WERROR}>:;-Werror=all-warnings>>")
target_link_options(shoal_cuda PRIVATE LINKER:--no-undefined)
set_target_properties(shoal_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} CXX_VISIBILITY_PRESET hidden
                                            CUDA_VISIBILITY_PRESET hidden)
set(SHOAL_HAVE_CUDA TRUE)
message(STATUS "CUDA backend: ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
