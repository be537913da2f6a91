// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/route/router_gemm.h"

#include <cmath>

#include "switchyard/base/check.h"

namespace switchyard::ops {

void RouterGemmArgs::check() const {
  require(logits.rows >= 0 && logits.cols >= 1, "router: logits is [", logits.rows, ", ",
          logits.cols, "]; it needs at least one expert column");
  require(hidden >= 1, "router: hidden is ", hidden, "; it must be >= 1");
  require(logits.stride >= logits.cols, "router: the row stride of logits is ", logits.stride,
          ", less than its ", logits.cols, " columns; rows would overlap");
  require(x_stride >= hidden, "router: the row stride of x is ", x_stride, ", less than hidden, ",
          hidden, "; rows would overlap");
  require(weight != nullptr, "router: weight is null; pass [", logits.cols, ", ", hidden, "]");
  require(std::isfinite(norm_eps) && norm_eps >= 0, "router: norm_eps is ", norm_eps,
          "; it must be finite and >= 0");
  require((x != nullptr && logits.data != nullptr) || logits.rows == 0,
          "router: x or logits is null but there are ", logits.rows, " rows; pass their data");
}

}  // namespace switchyard::ops
