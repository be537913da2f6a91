// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/cuda_check.h"
#include "switchyard/base/home_gpu.h"

namespace switchyard {

HomeGpu::HomeGpu() { cuda_check(cudaGetDevice(&ordinal_), "question for the current GPU"); }

HomeGpu::Scope::Scope(const HomeGpu& home) {
  cuda_check(cudaGetDevice(&before_), "question for the current GPU");
  cuda_check(cudaSetDevice(home.ordinal_), "choice of a GPU");
}

HomeGpu::Scope::~Scope() { cudaSetDevice(before_); }

}  // namespace switchyard
