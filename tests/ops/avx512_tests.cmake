# The op tests and the program with AVX-512 emulated, for processors that lack it; deploy/other_processors.sh builds and runs them. An
# object that defines what a member of a library does takes its place.
foreach(program test_ops shoal)
  add_executable(${program}_avx512 EXCLUDE_FROM_ALL ops/emulated_avx512.cpp $<TARGET_OBJECTS:${program}>)
  target_link_libraries(${program}_avx512 PRIVATE shoal_cli)
endforeach()
target_sources(test_ops_avx512 PRIVATE $<TARGET_OBJECTS:ops_conformance>)
target_link_libraries(test_ops_avx512 PRIVATE GTest::gmock GTest::gtest_main)

set(emulation "${cpu_avx2};SHELL:-include ${CMAKE_CURRENT_SOURCE_DIR}/ops/emulated_avx512.h")
foreach(level avx512 avx512_bf16)
  shoal_add_kernels(emulated_${level} ${level} "${emulation}" ${cpu_sources})
  shoal_link_kernels(emulated_${level} ${level} test_ops_avx512 shoal_avx512)
  set_target_properties(emulated_${level} PROPERTIES EXCLUDE_FROM_ALL TRUE)
endforeach()
target_compile_definitions(emulated_avx512_bf16 PRIVATE SHOAL_EMULATES_BF16)
