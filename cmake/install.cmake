# cmake --install: the program in bin, modules that it opens at run time in lib/shoal, configs, documents, pages of the manual
# and completion of shells; and packages for Debian of the same (cpack -G DEB).
include(GNUInstallDirs)
option(SHOAL_PAGES "Write man pages and completion of shells when building, for which the built program is run" ON)

# Libraries outside the system's folders (a cluster's MPI, cuBLASLt) are found where they were linked from.
set_target_properties(shoal ${SHOAL_MPI_MODULES} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS shoal RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT shoal)

# The program looks for modules in ../lib/shoal (core/module.cpp), whatever the system's folder of libraries is.
function(shoal_install_module target component)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
    install(TARGETS ${target} LIBRARY DESTINATION lib/shoal COMPONENT ${component})
  endif()
endfunction()
shoal_install_module(shoal_mpi_openmpi openmpi)
shoal_install_module(shoal_mpi_mpich mpich)
shoal_install_module(shoal_cuda cuda)
shoal_install_module(shoal_nccl cuda)

install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/shoal COMPONENT shoal)
install(DIRECTORY deploy DESTINATION ${CMAKE_INSTALL_DATADIR}/shoal COMPONENT shoal)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/shoal COMPONENT shoal)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/shoal COMPONENT shoal RENAME copyright)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/shoal COMPONENT shoal FILES_MATCHING PATTERN *.md PATTERN *.svg)

if(SHOAL_PAGES)
  set(pages ${PROJECT_BINARY_DIR}/pages)
  add_custom_command(OUTPUT ${pages}/made
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${pages}
    COMMAND shoal man --out ${pages}/man1
    COMMAND shoal completion bash > ${pages}/shoal
    COMMAND shoal completion zsh > ${pages}/_shoal
    COMMAND shoal completion fish > ${pages}/shoal.fish
    COMMAND ${CMAKE_COMMAND} -E touch ${pages}/made
    DEPENDS shoal COMMENT "Writing man pages and completion of shells" VERBATIM)
  add_custom_target(shoal_pages ALL DEPENDS ${pages}/made)
  install(DIRECTORY ${pages}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT shoal)
  install(FILES ${pages}/shoal DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT shoal)
  install(FILES ${pages}/shoal.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT shoal)
  # Debian's zsh looks for what packages bring in a folder of its own.
  set(zsh_folder site-functions)
  if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    set(zsh_folder vendor-completions)
  endif()
  install(FILES ${pages}/_shoal DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/${zsh_folder} COMPONENT shoal)
endif()

# Packages: shoal, and a module of MPI in each of shoal-openmpi and shoal-mpich, so that shoal itself asks for neither.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME shoal)
set(CPACK_PACKAGE_VENDOR "The Shoal project")
set(CPACK_PACKAGE_CONTACT "The Shoal project")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL shoal)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The Shoal project")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_SHOAL_PACKAGE_NAME shoal)
set(CPACK_DEBIAN_SHOAL_PACKAGE_RECOMMENDS ca-certificates)
set(CPACK_COMPONENT_SHOAL_DESCRIPTION "trainer of GPT-2 in one program
Shoal prepares text, trains GPT-2 on one core, one machine or a cluster,
evaluates, resumes exactly where it stopped, samples, and draws curves. It
needs neither Python nor a framework.")
if(EXISTS /etc/os-release)
  # One version for each release of the system, whose libraries the package needs: 0.2.0-1~debian12.
  file(STRINGS /etc/os-release system REGEX "^(ID|VERSION_ID)=")
  string(REGEX REPLACE "[^;]*=|\"" "" system "${system}")
  list(SORT system ORDER DESCENDING)  # the name before the number
  list(JOIN system "" system)
  set(CPACK_DEBIAN_PACKAGE_RELEASE "1~${system}")
endif()
foreach(mpi openmpi mpich)
  if(TARGET shoal_mpi_${mpi})
    string(TOUPPER ${mpi} upper)
    list(APPEND CPACK_COMPONENTS_ALL ${mpi})
    set(CPACK_DEBIAN_${upper}_PACKAGE_NAME shoal-${mpi})
    set(CPACK_COMPONENT_${upper}_DEPENDS shoal)
    set(CPACK_COMPONENT_${upper}_DESCRIPTION "trainer of GPT-2, ranks as processes
With this module Shoal's ranks may be processes, on one machine or many.")
  endif()
endforeach()
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_DEBIAN_OPENMPI_PACKAGE_DEPENDS openmpi-bin)
set(CPACK_DEBIAN_MPICH_PACKAGE_DEPENDS mpich)
include(CPack)
