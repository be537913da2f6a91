// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/route/router_gemm.h"

namespace switchyard::ops {

void router_gemm_ref(const RouterGemmArgs& args) {
  args.check();
  for (std::int64_t t = 0; t < args.logits.rows; ++t)
    for (std::int64_t e = 0; e < args.logits.cols; ++e) {
      double total = args.bias ? double(args.bias[e]) : 0;
      for (std::int64_t h = 0; h < args.hidden; ++h)
        total += double(load_element(args.dtype, args.x, t * args.x_stride + h)) *
                 double(args.weight[e * args.hidden + h]);
      args.logits.row(t)[e] = float(total);
    }
}

}  // namespace switchyard::ops
