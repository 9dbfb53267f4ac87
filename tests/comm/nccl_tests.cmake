# NCCL's groups over stand-ins for NCCL and for CUDA's runtime, as a module of its own.
set_source_files_properties(${SHOAL_NCCL_KERNELS} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
                            "-x;c++;-include;${CMAKE_CURRENT_SOURCE_DIR}/comm/nccl/kernels.h")
add_library(shoal_nccl_emulated MODULE ${SHOAL_NCCL_SOURCES} ${SHOAL_NCCL_KERNELS} comm/nccl/fake_cuda.cpp comm/nccl/fake_nccl.cpp)
target_include_directories(shoal_nccl_emulated BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_include_directories(shoal_nccl_emulated SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${NCCL_INCLUDE_DIR})
target_compile_options(shoal_nccl_emulated PRIVATE -Wno-conversion -Wno-shadow)
target_link_libraries(shoal_nccl_emulated PRIVATE shoal_options fmt::fmt Threads::Threads)
target_link_options(shoal_nccl_emulated PRIVATE LINKER:--no-undefined)
shoal_unity(shoal_nccl_emulated)
set_target_properties(shoal_nccl_emulated PROPERTIES CXX_VISIBILITY_PRESET hidden)

# Layouts of ranks that have a GPU each.
add_dependencies(test_ops_cuda shoal_nccl_emulated)
add_test(NAME ops.cuda_emulated_nccl COMMAND test_ops_cuda --gtest_filter=*CudaLayout*Float32:*CudaLayout*2x2x2*:CudaRuns*)
set_tests_properties(ops.cuda_emulated_nccl PROPERTIES
  TIMEOUT 600 COST 80 ENVIRONMENT "SHOAL_CUDA_MODULE=$<TARGET_FILE:shoal_cuda_emulated>;SHOAL_NCCL_MODULE=$<TARGET_FILE:shoal_nccl_emulated>;SHOAL_EMULATED_GPUS=8")
