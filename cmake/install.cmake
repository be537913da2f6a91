# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: the command, the static library, its public headers and a package for
# find_package(switchyard). Public are base/, core/, the values of eplb/ that plan and decide what moves, those of the fused
# all-reduce, and those of api/ that include nothing below them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

file(GLOB headers RELATIVE ${SWITCHYARD_SRC} CONFIGURE_DEPENDS
  ${SWITCHYARD_SRC}/switchyard/api/*.h ${SWITCHYARD_SRC}/switchyard/core/*.h ${SWITCHYARD_SRC}/switchyard/base/*.h)
foreach(value balancer loads migration placement placement_file planner statistics)
  list(APPEND headers switchyard/eplb/${value}.h)
endforeach()
set(allreduce switchyard/ops/allreduce_norm/allreduce_norm.h switchyard/formats/scale_layout.h)
list(APPEND headers ${allreduce})
# api/layer_source.h reads a header of the builders.
list(REMOVE_ITEM headers switchyard/api/layer_source.h)
foreach(header ${headers})
  file(STRINGS ${SWITCHYARD_SRC}/${header} inner REGEX "#include \"switchyard/" )
  list(FILTER inner EXCLUDE REGEX "switchyard/(api|core|base|eplb)/")
  foreach(value ${allreduce})
    list(FILTER inner EXCLUDE REGEX "\"${value}\"")
  endforeach()
  get_filename_component(folder ${header} DIRECTORY)
  if(NOT inner)
    install(FILES ${SWITCHYARD_SRC}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
  endif()
endforeach()

install(TARGETS switchyard EXPORT switchyard_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET switchyard_cli)
  install(TARGETS switchyard_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/switchyard)
install(EXPORT switchyard_targets NAMESPACE switchyard:: FILE switchyard-targets.cmake DESTINATION ${package})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/switchyard-config.cmake.in
  ${PROJECT_BINARY_DIR}/switchyard-config.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/switchyard-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/switchyard-config.cmake ${PROJECT_BINARY_DIR}/switchyard-config-version.cmake
  DESTINATION ${package})
