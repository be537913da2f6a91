// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/cuda_check.h"
#include "switchyard/ops/activation/activation.h"
#include "switchyard/ops/activation/activation_math.h"

namespace switchyard::ops {
namespace {

constexpr int kThreads = 256;

template <class Formula>
__global__ void __launch_bounds__(kThreads) activation_kernel(ActivationArgs a, bool gated) {
  const std::int64_t r = blockIdx.x;
  float* out = a.out.row(r);                       // (inter)
  const float* up = a.up.row(r);                   // (inter)
  const float* gate = gated ? a.gate.row(r) : up;  // (inter)
  const std::int64_t id = a.expert_ids ? a.expert_ids[r] : 0;
  if (id < 0 || (a.num_params > 1 && id >= a.num_params)) {
    for (std::int64_t c = threadIdx.x; c < a.out.cols; c += kThreads) out[c] = 0;
    return;
  }
  const ActivationParams p = a.params[a.num_params == 1 ? 0 : id];
  for (std::int64_t c = threadIdx.x; c < a.out.cols; c += kThreads)
    out[c] = Formula::eval(p, gate[c], up[c]);
}

}  // namespace

void activation_cuda(const ActivationArgs& args, Stream stream) {
  args.check();
  if (args.out.rows == 0 || args.out.cols == 0) return;  // CUDA refuses a grid of 0 blocks
  const auto cuda_stream = static_cast<cudaStream_t>(stream.handle);
  const bool gated = is_gated(args.kind.type);
  with_formula(args.kind, [&](auto formula) {
    activation_kernel<decltype(formula)>
        <<<unsigned(args.out.rows), kThreads, 0, cuda_stream>>>(args, gated);
  });
  cuda_check(cudaGetLastError(), "activation: launch");
}

}  // namespace switchyard::ops
