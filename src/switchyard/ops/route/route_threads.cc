// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "switchyard/ops/route/route.h"
#include "switchyard/ops/route/router_gemm.h"

namespace switchyard::ops {
namespace {

constexpr std::int64_t kTaskRows = 16, kTaskExperts = 16;

constexpr std::int64_t pieces(std::int64_t size, std::int64_t piece) {
  return (size + piece - 1) / piece;
}

}  // namespace

void router_gemm_cpu(const RouterGemmArgs& args, ThreadPool& pool) {
  args.check();
  const std::int64_t columns = pieces(args.logits.cols, kTaskExperts);
  pool.for_each(pieces(args.logits.rows, kTaskRows) * columns, [&](std::int64_t i, int) {
    const std::int64_t row = i / columns * kTaskRows, expert = i % columns * kTaskExperts;
    router_gemm_cpu(args, {.row_begin = row,
                           .row_end = std::min(row + kTaskRows, args.logits.rows),
                           .expert_begin = expert,
                           .expert_end = std::min(expert + kTaskExperts, args.logits.cols)});
  });
}

void route_cpu(const RouteArgs& args, ThreadPool& pool) {
  args.check();
  const std::int64_t rows = args.logits.rows;
  pool.for_each(pieces(rows, kTaskRows), [&](std::int64_t i, int) {
    route_cpu(args, i * kTaskRows, std::min((i + 1) * kTaskRows, rows));
  });
}

}  // namespace switchyard::ops
