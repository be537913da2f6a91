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
