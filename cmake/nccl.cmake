# Collectives on GPUs' memory, a module that the program loads where ranks have GPUs of their own.
if(NOT SHOAL_HAVE_CUDA)
  return()
endif()
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} $ENV{NCCL_HOME}/include)
find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib $ENV{NCCL_HOME}/lib)
if(NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
  message(STATUS "NCCL: no, nccl.h or libnccl was not found (NCCL_HOME); ranks on several GPUs exchange through the host")
  return()
endif()
file(READ ${NCCL_INCLUDE_DIR}/nccl.h nccl_header LIMIT 16000)
string(REGEX MATCH "NCCL_VERSION_CODE ([0-9]+)" nccl_version "${nccl_header}")
set(nccl_version ${CMAKE_MATCH_1})
if(nccl_version LESS 21800)
  message(STATUS "NCCL: no, ${nccl_version} is older than 2.18")
  return()
endif()

file(GLOB SHOAL_NCCL_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/comm/nccl/*.cpp)
set(SHOAL_NCCL_KERNELS ${PROJECT_SOURCE_DIR}/src/comm/nccl/add_parts.cu)
# Those of the rest that it needs, since a static library is for programs.
list(APPEND SHOAL_NCCL_SOURCES ${PROJECT_SOURCE_DIR}/src/comm/arguments.cpp ${PROJECT_SOURCE_DIR}/src/comm/self.cpp
                               ${PROJECT_SOURCE_DIR}/src/core/dtype.cpp)
add_library(shoal_nccl MODULE ${SHOAL_NCCL_SOURCES} ${SHOAL_NCCL_KERNELS})
target_include_directories(shoal_nccl SYSTEM PRIVATE ${NCCL_INCLUDE_DIR})
target_link_libraries(shoal_nccl PRIVATE shoal_options fmt::fmt Threads::Threads CUDA::cudart_static ${NCCL_LIBRARY})
target_compile_options(shoal_nccl PRIVATE
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=-Wall$<$<BOOL:${SHOAL_WERROR}>:;-Werror=all-warnings>>")
target_link_options(shoal_nccl PRIVATE LINKER:--no-undefined)
shoal_unity(shoal_nccl)
set_target_properties(shoal_nccl PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} CXX_VISIBILITY_PRESET hidden
                                            CUDA_VISIBILITY_PRESET hidden)
set(SHOAL_HAVE_NCCL TRUE)
message(STATUS "NCCL: ${NCCL_LIBRARY}, ${nccl_version}")
