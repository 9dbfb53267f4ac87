# The program knows MPI only through modules that it loads where MPI started it: one for each implementation
# whose compiler wrapper is found.
# MPI_OPENMPI_WRAPPER and MPI_MPICH_WRAPPER may name others, e.g. of a cluster's own MPI.
function(shoal_mpi_module name)
  cmake_parse_arguments(ARG "" "" "WRAPPERS;LIBRARIES" ${ARGN})
  string(TOUPPER ${name} upper)
  find_program(MPI_${upper}_WRAPPER NAMES ${ARG_WRAPPERS} DOC "The mpicc of ${name}")
  set(wrapper ${MPI_${upper}_WRAPPER})
  if(NOT wrapper)
    return()
  endif()
  # A plain mpicc may be of either.
  execute_process(COMMAND ${wrapper} --showme:version RESULT_VARIABLE not_openmpi OUTPUT_QUIET ERROR_QUIET)
  if((name STREQUAL "openmpi" AND not_openmpi) OR (name STREQUAL "mpich" AND NOT not_openmpi))
    unset(MPI_${upper}_WRAPPER CACHE)  # so that it is looked for again: it may come later, under its own name
    return()
  endif()
  execute_process(COMMAND ${wrapper} -show OUTPUT_VARIABLE command ERROR_QUIET)
  string(REGEX MATCHALL "-I[^ \n]+" includes "${command}")
  string(REGEX MATCHALL "-L[^ \n]+" folders "${command}")
  list(TRANSFORM includes REPLACE "^-I" "")
  list(TRANSFORM folders REPLACE "^-L" "")
  # Not cached: another wrapper has another library.
  find_library(mpi_library NAMES ${ARG_LIBRARIES} HINTS ${folders} NO_CACHE)
  if(NOT mpi_library)
    return()
  endif()
  add_library(shoal_mpi_${name} MODULE ${PROJECT_SOURCE_DIR}/src/comm/mpi/module/module.cpp)
  target_include_directories(shoal_mpi_${name} SYSTEM PRIVATE ${includes})
  # No C++ bindings, which neither has any more.
  target_compile_definitions(shoal_mpi_${name} PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_link_libraries(shoal_mpi_${name} PRIVATE shoal_options ${mpi_library})
  set_target_properties(shoal_mpi_${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
                                                     CXX_VISIBILITY_PRESET hidden)
  set_property(GLOBAL APPEND PROPERTY SHOAL_MPI_MODULES shoal_mpi_${name})
endfunction()

if(NOT SHOAL_MPI STREQUAL "OFF")
  shoal_mpi_module(openmpi WRAPPERS mpicc.openmpi mpicc LIBRARIES mpi)
  shoal_mpi_module(mpich WRAPPERS mpicc.mpich mpicc LIBRARIES mpich mpi)
endif()
get_property(SHOAL_MPI_MODULES GLOBAL PROPERTY SHOAL_MPI_MODULES)
if(SHOAL_MPI STREQUAL "ON" AND NOT SHOAL_MPI_MODULES)
  message(FATAL_ERROR "SHOAL_MPI=ON, but neither Open MPI nor MPICH was found (Debian: libopenmpi-dev, libmpich-dev)")
endif()
message(STATUS "MPI modules: ${SHOAL_MPI_MODULES}")
