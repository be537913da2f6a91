# SPDX-License-Identifier: Apache-2.0
# SWITCHYARD_TILE_KERNELS: the digest of the sources that decide how fast the GPU's grouped experts run, their
# launches included. Tactics that ship hold for the digest that they were measured with. As a script, with
# -DSWITCHYARD_SRC=FOLDER -P, it prints the digest (scripts/ship_tactics.py).
set(ops ${SWITCHYARD_SRC}/switchyard/ops)
set(tile_patterns
  ${ops}/grouped_gemm/*.cu ${ops}/grouped_gemm/*sm90*.h ${ops}/grouped_gemm/*_cuda.h
  ${ops}/grouped_gemm/*_cuda.cc ${ops}/grouped_gemm/tile*.h ${ops}/grouped_gemm/tile*.cc
  ${ops}/grouped_ffn/*.cu ${ops}/grouped_ffn/*_sm90.h ${ops}/grouped_ffn/*_cuda.h
  ${ops}/grouped_ffn/device_stages.h ${ops}/grouped_ffn/tile_ffn.* ${ops}/grouped_ffn/routing_launch.*
  ${ops}/route/route_held* ${ops}/route/router_choice.*
  ${ops}/quantize/quantize_sm90.h ${ops}/quantize/quantize_math.h ${ops}/activation/activation_math.h)
if(CMAKE_SCRIPT_MODE_FILE)
  file(GLOB tile_kernels ${tile_patterns})
else()
  file(GLOB tile_kernels CONFIGURE_DEPENDS ${tile_patterns})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${tile_kernels})
endif()
list(FILTER tile_kernels EXCLUDE REGEX "/pack_tiles[^/]*$")  # they run before any forward
list(SORT tile_kernels)
list(REMOVE_DUPLICATES tile_kernels)
set(digests "")
foreach(kernel ${tile_kernels})
  file(SHA256 ${kernel} digest)
  string(APPEND digests ${digest})
endforeach()
string(SHA256 digests "${digests}")
string(SUBSTRING ${digests} 0 12 SWITCHYARD_TILE_KERNELS)
if(CMAKE_SCRIPT_MODE_FILE)
  message("${SWITCHYARD_TILE_KERNELS}")
endif()
