# SPDX-License-Identifier: Apache-2.0
# The commit is compiled into one generated file, rewritten only when it changes.
execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
  OUTPUT_VARIABLE SWITCHYARD_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT SWITCHYARD_COMMIT)
  set(SWITCHYARD_COMMIT unknown)
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/version.cc.in ${PROJECT_BINARY_DIR}/version.cc @ONLY)
target_sources(switchyard PRIVATE ${PROJECT_BINARY_DIR}/version.cc)
