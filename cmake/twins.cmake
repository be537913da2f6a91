# SPDX-License-Identifier: Apache-2.0
# Chooses twins by file name: *_avx2.cc, *_avx512.cc and *_amx.cc get their instruction sets and are
# entered only after a run-time check; *_cuda.cu or its *_cuda_stub.cc, *_mpi.cc or its
# *_mpi_stub.cc, never both.
set(SWITCHYARD_AVX2 -mavx2 -mfma -mf16c)
set(SWITCHYARD_AVX512 ${SWITCHYARD_AVX2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mavx512vnni -mavx512bf16)
set(SWITCHYARD_AMX ${SWITCHYARD_AVX512} -mamx-tile -mamx-bf16)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  foreach(isa avx2 avx512 amx)
    string(TOUPPER ${isa} ISA)
    set(twins ${SWITCHYARD_SOURCES})
    list(FILTER twins INCLUDE REGEX "_${isa}\\.cc$")
    # g++ 12's own intrinsic headers trip the uninitialised warnings.
    set_source_files_properties(${twins} PROPERTIES COMPILE_OPTIONS
      "-O3;-Wno-uninitialized;-Wno-maybe-uninitialized;${SWITCHYARD_${ISA}}")
  endforeach()
endif()

if(SWITCHYARD_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES 90a)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  # CMake 3.25 does not know nvcc's flag for C++20; given it, CUDA follows CMAKE_CXX_STANDARD.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  add_compile_options(
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off>"
    $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>
    # Kernels are mostly unrolled copies: a quarter of the size, unpacked once when a module is loaded.
    $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
  file(GLOB_RECURSE cuda_twins CONFIGURE_DEPENDS ${SWITCHYARD_SRC}/switchyard/*.cu)
  list(FILTER SWITCHYARD_SOURCES EXCLUDE REGEX "_cuda_stub\\.cc$")
  list(APPEND SWITCHYARD_SOURCES ${cuda_twins})
endif()

if(MPI_CXX_FOUND)
  list(FILTER SWITCHYARD_SOURCES EXCLUDE REGEX "_mpi_stub\\.cc$")
  set(twins ${SWITCHYARD_SOURCES})
  list(FILTER twins INCLUDE REGEX "_mpi\\.cc$")
  set_source_files_properties(${twins} PROPERTIES INCLUDE_DIRECTORIES "${MPI_CXX_INCLUDE_DIRS}"
    COMPILE_DEFINITIONS OMPI_SKIP_MPICXX)
else()
  list(FILTER SWITCHYARD_SOURCES EXCLUDE REGEX "_mpi\\.cc$")
endif()
