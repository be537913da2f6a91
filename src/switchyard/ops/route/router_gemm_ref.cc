// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "switchyard/ops/route/router_gemm.h"

namespace switchyard::ops {

void router_gemm_ref(const RouterGemmArgs& args) {
  args.check();
  for (std::int64_t t = 0; t < args.logits.rows; ++t) {
    auto x = [&](std::int64_t h) {
      return double(load_element(args.dtype, args.x, t * args.x_stride + h));
    };
    double squares = 0;
    for (std::int64_t h = 0; h < args.hidden; ++h) squares += x(h) * x(h);
    const double root =
        args.norm_eps > 0 ? std::sqrt(squares / double(args.hidden) + double(args.norm_eps)) : 1;
    for (std::int64_t e = 0; e < args.logits.cols; ++e) {
      double total = args.bias ? double(args.bias[e]) : 0;
      for (std::int64_t h = 0; h < args.hidden; ++h)
        total += x(h) / root * double(args.weight[e * args.hidden + h]);
      args.logits.row(t)[e] = float(total);
    }
  }
}

}  // namespace switchyard::ops
