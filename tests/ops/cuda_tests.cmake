# The op tests once more, of the cuda backend: on a GPU, and its kernels on the CPU.
set(cuda_test_sources
  ops/cuda/main.cpp ops/cpu_attention_test.cpp ops/cpu_cross_entropy_test.cpp ops/cpu_elementwise_test.cpp
  ops/cpu_layers_test.cpp ops/cpu_linear_test.cpp ops/cpu_shards_test.cpp ops/dropout_test.cpp)

function(shoal_cuda_tests name)
  add_executable(${name} ${cuda_test_sources} ${ARGN})
  target_include_directories(${name} BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE SHOAL_TEST_CUDA SHOAL_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE GTest::gmock GTest::gtest)
endfunction()

shoal_cuda_tests(test_ops_cuda ops/cuda/own_test.cpp)
target_link_libraries(test_ops_cuda PRIVATE shoal_parallel)
add_test(NAME ops.cuda COMMAND test_ops_cuda)
set_tests_properties(ops.cuda PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600)

# The kernels compiled as C++ over a stand-in for what only a GPU has.
file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/ops/cuda/*.cu)
file(GLOB backend_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/ops/cuda/*.cpp
                                            ${CMAKE_CURRENT_SOURCE_DIR}/ops/cuda/emulated/*.cpp)
set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++;-Wno-unknown-pragmas")
shoal_cuda_tests(test_ops_cuda_emulated ${kernels} ${backend_sources})
target_include_directories(test_ops_cuda_emulated BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/ops/cuda/emulated)
target_include_directories(test_ops_cuda_emulated SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(test_ops_cuda_emulated PRIVATE -Wno-conversion -Wno-shadow -fno-math-errno -ffp-contract=off)
target_link_libraries(test_ops_cuda_emulated PRIVATE shoal_ops_reference)
add_test(NAME ops.cuda_emulated COMMAND test_ops_cuda_emulated)
set_tests_properties(ops.cuda_emulated PROPERTIES TIMEOUT 600)
