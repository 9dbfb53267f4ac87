# The op tests once more, of the cuda backend: on a GPU, and its kernels on the CPU.
add_executable(test_ops_cuda
  ops/cuda/main.cpp ops/cuda/cuda_under_test.cpp ops/cuda/own_test.cpp ops/cuda/cudnn_attention_test.cpp ops/cuda/layout_test.cpp
  ops/cuda/generation_test.cpp ops/cuda/streams_test.cpp $<TARGET_OBJECTS:ops_conformance>)
target_include_directories(test_ops_cuda BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_definitions(test_ops_cuda PRIVATE SHOAL_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
target_link_libraries(test_ops_cuda PRIVATE shoal_generate shoal_parallel GTest::gmock GTest::gtest)
shoal_compile_tests(test_ops_cuda TRUE)
add_dependencies(test_ops_cuda shoal_cuda)
add_test(NAME ops.cuda COMMAND test_ops_cuda)
set_tests_properties(ops.cuda PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600)

# The kernels compiled as C++ over a stand-in for what only a GPU has, as a module of its own. Its memory is out of the host's
# reach.
set(kernels ${SHOAL_CUDA_KERNELS})
list(REMOVE_ITEM kernels ${PROJECT_SOURCE_DIR}/src/ops/cuda/sort.cu)  # CUB's
# Races are not looked for where threads wait for each other's arrivals.
file(GLOB hopper_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/ops/cuda/hopper/*.cu)
set_source_files_properties(${hopper_kernels} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
file(GLOB backend_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/ops/cuda/*.cpp
                                            ${CMAKE_CURRENT_SOURCE_DIR}/ops/cuda/emulated/*.cpp)
list(REMOVE_ITEM backend_sources ${PROJECT_SOURCE_DIR}/src/ops/cuda/module.cpp)
# The compiler reports the accesses of kernels, for races (ops/cuda/emulated/races.h).
set(kernel_options -x c++)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT SHOAL_SANITIZE)
  list(APPEND kernel_options -fsanitize=thread --param=tsan-instrument-func-entry-exit=0)
  set(finds_races TRUE)
endif()
set_source_files_properties(${kernels} ops/cuda/emulated_test.cpp PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${kernel_options}")
add_library(shoal_cuda_emulated MODULE ${kernels} ${hopper_kernels} ${backend_sources} ${SHOAL_CUDA_CORE})
target_include_directories(shoal_cuda_emulated BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/ops/cuda/emulated
                                                              ${CMAKE_CURRENT_SOURCE_DIR})
target_include_directories(shoal_cuda_emulated SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(shoal_cuda_emulated PRIVATE -Wno-conversion -Wno-shadow -Wno-unknown-pragmas -fno-math-errno)
target_link_libraries(shoal_cuda_emulated PRIVATE shoal_options fmt::fmt)
target_link_options(shoal_cuda_emulated PRIVATE LINKER:--no-undefined)
set_target_properties(shoal_cuda_emulated PROPERTIES CXX_VISIBILITY_PRESET hidden)
shoal_unity(shoal_cuda_emulated)
set_source_files_properties(ops/cuda/emulated/places.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
add_dependencies(test_ops_cuda shoal_cuda_emulated)
# Products with epilogues are as fast as the stand-in says; once more where their parts are faster.
add_test(NAME ops.cuda_emulated_parts COMMAND test_ops_cuda --gtest_filter=*Linear*-Blocks/*)
set_tests_properties(ops.cuda_emulated_parts PROPERTIES
  TIMEOUT 600 ENVIRONMENT "SHOAL_CUDA_MODULE=$<TARGET_FILE:shoal_cuda_emulated>;SHOAL_FAKE_FUSED=2")

# The emulated GPU itself, with kernels and calls that have faults.
file(GLOB emulation CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/ops/cuda/emulated/*.cpp)
list(REMOVE_ITEM emulation ${CMAKE_CURRENT_SOURCE_DIR}/ops/cuda/emulated/module.cpp
                           ${CMAKE_CURRENT_SOURCE_DIR}/ops/cuda/emulated/fused_attention.cpp
                           ${CMAKE_CURRENT_SOURCE_DIR}/ops/cuda/emulated/tensor_map.cpp)
add_executable(test_ops_emulated ops/cuda/emulated_test.cpp ${emulation} ${PROJECT_SOURCE_DIR}/src/ops/cuda/memory.cpp)
target_include_directories(test_ops_emulated BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/ops/cuda/emulated ${CMAKE_CURRENT_SOURCE_DIR})
target_include_directories(test_ops_emulated SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(test_ops_emulated PRIVATE -Wno-conversion -Wno-shadow -Wno-unknown-pragmas)
target_compile_definitions(test_ops_emulated PRIVATE $<$<BOOL:${finds_races}>:SHOAL_FINDS_RACES>)
target_link_libraries(test_ops_emulated PRIVATE shoal_core fmt::fmt GTest::gmock GTest::gtest_main)
shoal_unity(test_ops_emulated)
add_test(NAME ops.emulated_gpu COMMAND test_ops_emulated)

# Kernels have the same bits in other orders of their threads and blocks, and no races; and they fit every GPU. The tests are those
# that take little time; together they launch every kernel. ops.cuda_emulated has the others.
set(emulated_run ${CMAKE_CURRENT_SOURCE_DIR}/ops/cuda/emulated_run.py --module $<TARGET_FILE:shoal_cuda_emulated>
                 --tests $<TARGET_FILE:test_ops_cuda> --folder ${CMAKE_CURRENT_BINARY_DIR}/emulated_run)
add_test(NAME ops.cuda_emulated COMMAND ${emulated_run} rest)
set_tests_properties(ops.cuda_emulated PROPERTIES TIMEOUT 600 COST 90)  # a long one begins early, or all wait for it at the end
add_test(NAME ops.cuda_emulated_orders COMMAND ${emulated_run} orders $<$<BOOL:${finds_races}>:--races>
         COMMAND_EXPAND_LISTS)
add_test(NAME ops.cuda_emulated_resources COMMAND ${emulated_run} resources --library $<TARGET_FILE:shoal_cuda>)
set_tests_properties(ops.cuda_emulated_orders PROPERTIES TIMEOUT 300 PROCESSORS 2 FIXTURES_SETUP emulated_launches)
set_tests_properties(ops.cuda_emulated_resources PROPERTIES TIMEOUT 60 SKIP_RETURN_CODE 77 FIXTURES_REQUIRED emulated_launches)

# Plans of cuDNN's own library for GPUs that are not here. It is found beside its headers, or where the loader looks.
if(SHOAL_HAVE_CUDNN)
  add_library(emulated_driver SHARED ops/cuda/cudnn/driver.cpp)
  set_target_properties(emulated_driver PROPERTIES PREFIX "" OUTPUT_NAME libcuda SUFFIX .so.1
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/emulated_driver)
  add_library(old_cudnn MODULE ops/cuda/cudnn/old_library.cpp)
  add_executable(test_ops_cudnn ops/cuda/cudnn/plans_test.cpp ${PROJECT_SOURCE_DIR}/src/ops/cuda/cudnn/library.cpp
    ${PROJECT_SOURCE_DIR}/src/ops/cuda/cudnn/graph.cpp ${PROJECT_SOURCE_DIR}/src/ops/cuda/cudnn/attention_graphs.cpp)
  target_include_directories(test_ops_cudnn SYSTEM PRIVATE ${SHOAL_CUDNN_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_definitions(test_ops_cudnn PRIVATE SHOAL_OLD_CUDNN="$<TARGET_FILE:old_cudnn>"
                                                    SHOAL_EMULATED_DRIVER="$<TARGET_FILE:emulated_driver>")
  target_link_libraries(test_ops_cudnn PRIVATE shoal_options fmt::fmt ${CMAKE_DL_LIBS} GTest::gmock GTest::gtest_main)
  add_dependencies(test_ops_cudnn emulated_driver old_cudnn)
  add_test(NAME ops.cudnn COMMAND test_ops_cudnn)
  set_tests_properties(ops.cudnn PROPERTIES TIMEOUT 300 ENVIRONMENT
    "LD_LIBRARY_PATH=${SHOAL_CUDNN_INCLUDE}/../lib64:${SHOAL_CUDNN_INCLUDE}/../lib:$ENV{LD_LIBRARY_PATH}")
endif()
