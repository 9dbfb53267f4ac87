# The kernels of ops/cpu, compiled for each level of instructions (ops/cpu/cpu.h). A level's objects are linked into one, in which
# all names become local but that of the function that levels.cpp calls: otherwise the linker could take an inline function that
# was compiled for AVX-512 for the whole program.
set(cpu_baseline "")
if(SHOAL_X86)
  set(cpu_avx2 -mavx2 -mfma)
  set(cpu_avx512 ${cpu_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  set(cpu_avx512_bf16 ${cpu_avx512} -mavx512bf16)
  set(cpu_levels baseline avx2 avx512 avx512_bf16)
else()
  set(cpu_levels baseline)
endif()

file(GLOB cpu_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/ops/cpu/*.cpp)
list(REMOVE_ITEM cpu_sources ${PROJECT_SOURCE_DIR}/src/ops/cpu/levels.cpp)
# The library `target` has what is in the files, compiled with the options as the kernels of a level.
function(shoal_add_kernels target level options)
  add_library(${target} OBJECT ${ARGN})
  target_link_libraries(${target} PRIVATE shoal_core)
  # Names that are unique in a process cannot become local.
  target_compile_options(${target} PRIVATE -fno-math-errno $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique> ${options})
  target_compile_definitions(${target} PRIVATE SHOAL_CPU_LEVEL=shoal_cpu_${level})
endfunction()
# Links the kernels of a level, in the library `kernels`, into the targets.
function(shoal_link_kernels kernels level)
  set(objects $<TARGET_OBJECTS:${kernels}>)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${kernels}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_LINKER} -r --force-group-allocation -o ${object} ${objects}
    COMMAND ${CMAKE_OBJCOPY} --keep-global-symbol=shoal_cpu_${level} ${object}
    DEPENDS ${kernels} ${objects} COMMAND_EXPAND_LISTS VERBATIM
    COMMENT "Linking ${kernels}")
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  foreach(target ${ARGN})
    target_sources(${target} PRIVATE ${object})
  endforeach()
endfunction()
foreach(level ${cpu_levels})
  set(kernels shoal_cpu_${level})
  shoal_add_kernels(${kernels} ${level} "${cpu_${level}}" ${cpu_sources})
  if(SHOAL_UNITY)  # not several files at a time, since one would decide what is inlined in another
    shoal_add_kernels(${kernels}_headers ${level} "${cpu_${level}}" ${PROJECT_BINARY_DIR}/precompiled.cpp)
    shoal_precompile(${kernels}_headers [["ops/cpu/cpu_backend.h"]] [["ops/cpu/simd.h"]] [["ops/cpu/threads.h"]]
      [["ops/kernels.h"]] <algorithm> <cmath>)
    target_precompile_headers(${kernels} REUSE_FROM ${kernels}_headers)
  endif()
  shoal_link_kernels(${kernels} ${level} shoal_ops_cpu)
endforeach()
