// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks a formula that the CPU twin and the CUDA twin share.
#if defined(__CUDACC__)
#define SWITCHYARD_HD __host__ __device__
#else
#define SWITCHYARD_HD
#endif

/// Marks a shared template whose callable may be of one side only; the callable's side decides.
#if defined(__CUDACC__)
#define SWITCHYARD_ANY_SIDE _Pragma("nv_exec_check_disable")
#else
#define SWITCHYARD_ANY_SIDE
#endif

/// In front of a loop of a shared formula: the device unrolls it wholly, or leaves it as it stands.
#if defined(__CUDA_ARCH__)
#define SWITCHYARD_UNROLLED _Pragma("unroll")
#define SWITCHYARD_ROLLED _Pragma("unroll 1")
#else
#define SWITCHYARD_UNROLLED
#define SWITCHYARD_ROLLED
#endif
