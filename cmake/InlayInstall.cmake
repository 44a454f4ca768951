# cmake --install: the program, and the C++ library with what find_package(inlay) and pkg-config want. Components:
# program, library.
include(CMakePackageConfigHelpers)
install(TARGETS inlay RUNTIME COMPONENT program)
if(TARGET inlay_mpi)
  install(TARGETS inlay_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/inlay COMPONENT program)
endif()
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/inlay)
install(TARGETS inlay_shared EXPORT inlay LIBRARY COMPONENT library)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/inlay DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library)
install(EXPORT inlay FILE inlay-config.cmake NAMESPACE inlay:: DESTINATION ${package} COMPONENT library)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/inlay-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/inlay-config-version.cmake DESTINATION ${package} COMPONENT library)
configure_file(${CMAKE_SOURCE_DIR}/cmake/inlay.pc.in ${CMAKE_BINARY_DIR}/inlay.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/inlay.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)
