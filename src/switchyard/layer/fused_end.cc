// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/fused_end.h"

#include <algorithm>
#include <cstring>

#include "switchyard/base/check.h"

namespace switchyard::layer {
namespace {

constexpr std::int64_t kMostDenseBytes = std::int64_t(1) << 30;

std::size_t row_bytes(const Problem& p, Dtype t) { return std::size_t(p.hidden) * size_of(t); }

/// Bytes of every held expert's row for every token; 0 where none are kept.
std::size_t dense_bytes(const Problem& p, const FusedEnd::Args& a) {
  return a.ending != Ending::kReduce ? 0 : std::size_t(a.held * a.capacity) * row_bytes(p, a.dtype);
}

}  // namespace

void FusedEnd::check(const Problem& p, const Args& a) {
  require(p.combine == CombinePrecision::kBf16, "finalize ", to_string(a.ending),
          " sends contributions in the activation dtype; leave the combine's precision out");
  require(p.latent == 0, "finalize ", to_string(a.ending),
          " sums rows of the hidden width, and this layer sums in latent space; use plain");
  require(!a.fuses_shared, "finalize ", to_string(a.ending),
          " would weigh fused shared experts; build without fusion");
  if (a.ending != Ending::kReduce) return;
  require(p.routing.zero_experts == 0,
          "finalize reduce serves no zero experts, which have no rows; use fused");
  require(std::int64_t(dense_bytes(p, a)) <= kMostDenseBytes, "finalize reduce of ", a.capacity,
          " tokens x ", a.held, " experts takes ", dense_bytes(p, a),
          " bytes of rows; the limit is ", kMostDenseBytes, ": it is for few tokens, use fused");
}

FusedEnd::FusedEnd(comm::Group& group, const Problem& problem, const Args& args)
    : problem_(problem),
      args_([&] {
        comm::guarded(group, "end of the layer", [&] { check(problem, args); });
        return args;
      }()),
      workspace_(group, {group.size(), args.capacity, problem.hidden, args.dtype},
                 {.isa = args.isa, .pool = args.pool}) {
  comm::guarded(group, "end of the layer", [&] { allocate(); });
}

void FusedEnd::allocate() {
  const std::size_t row = row_bytes(problem_, args_.dtype), tokens = std::size_t(args_.capacity);
  rows_ = HostBuffer(tokens * std::size_t(problem_.top_k()) * row);
  shared_ = HostBuffer(tokens * row);
  dense_ = HostBuffer(dense_bytes(problem_, args_));
  plain_ = HostBuffer(tokens * row);
  nothing_ = HostBuffer(tokens * row);
  std::ranges::fill(nothing_.bytes(), std::byte(0));
  index_.resize(tokens * std::size_t(problem_.top_k()));
  weights_.resize(index_.size());
  scales_.resize(args_.ending == Ending::kReduce ? std::size_t(args_.held) * tokens : 0);
}

/// Index and weights of the choices, and the shared shard rounded to the dtype.
void FusedEnd::weigh(const LocalOutput& l) {
  const bool on_input = problem_.routing.placement == WeightPlacement::kInput;
  for (std::size_t i = 0; i < std::size_t(l.tokens * problem_.top_k()); ++i) {
    index_[i] = l.ids[i] < 0 ? -1 : std::int32_t(i);
    // A zero expert has no input to weigh: its row is the token itself.
    weights_[i] = on_input && l.ids[i] >= 0 && l.ids[i] < args_.held ? 1.0F : l.weights[i];
  }
  for (std::int64_t i = 0; l.shared != nullptr && i < l.tokens * problem_.hidden; ++i)
    store_element(args_.dtype, shared_.bytes().data(), i, l.shared[i]);
}

/// The rows by expert instead of by choice; rows of experts that a token has not chosen hold what
/// they held, and have scale 0.
void FusedEnd::spread(const LocalOutput& l) {
  const std::size_t bytes = row_bytes(problem_, args_.dtype);
  std::fill_n(scales_.begin(), args_.held * l.tokens, 0.0F);
  for (std::int64_t i = 0; i < l.tokens * problem_.top_k(); ++i) {
    if (index_[std::size_t(i)] < 0) continue;
    const std::int64_t at = l.ids[i] * l.tokens + i / problem_.top_k();
    scales_[std::size_t(at)] = weights_[std::size_t(i)];
    std::memcpy(dense_.bytes().data() + std::size_t(at) * bytes,
                rows_.bytes().data() + std::size_t(i) * bytes, bytes);
  }
}

ops::NormArgs norm_args(const BehindLayer& behind) {
  return {.residual_in = behind.residual_in,
          .rms_gamma = behind.rms_gamma,
          .rms_eps = behind.rms_eps,
          .weight_bias = behind.weight_bias,
          .residual_out = behind.residual_out,
          .norm_out = behind.norm_out};
}

void FusedEnd::finish(const LocalOutput& l, const BehindLayer& behind) {
  weigh(l);
  const ops::CallShape shape{.tokens = l.tokens, .hidden = problem_.hidden, .dtype = args_.dtype};
  const ops::NormArgs norm = norm_args(behind);
  const void* shared = l.shared != nullptr ? shared_.bytes().data() : nullptr;
  if (args_.ending == Ending::kReduce) {
    spread(l);
    return workspace_.run(
        ops::MoEReductionArgs{shape,
                              {.active_experts_token_input = dense_.bytes().data(),
                               .scale_input = scales_.data(),
                               .num_experts = args_.held,
                               .token_input = shared,
                               .routed_scaling_factor = l.factor},
                              nullptr,
                              norm}
            .call());
  }
  workspace_.run(ops::MoEFinalizeArgs{shape,
                                      {.rows = rows_.bytes().data(),
                                       .num_rows = l.tokens * problem_.top_k(),
                                       .expanded_idx_to_permuted_idx = index_.data(),
                                       .top_k = problem_.top_k(),
                                       .expert_scale_factor = weights_.data(),
                                       .routed_scaling_factor = l.factor,
                                       .shared_expert_output = shared},
                                      norm}
                     .call());
}

void FusedEnd::finish_plain(const LocalOutput& l, void* out, std::int64_t stride) {
  const bool dense = stride == problem_.hidden;
  void* to = dense ? out : plain_.bytes().data();
  finish(l, {.residual_in = nothing_.bytes().data(),
             .rms_gamma = nothing_.bytes().data(),
             .residual_out = to});
  const std::size_t bytes = row_bytes(problem_, args_.dtype);
  for (std::int64_t t = 0; !dense && t < l.tokens; ++t)
    std::memcpy(static_cast<std::byte*>(out) + std::size_t(t * stride) * size_of(args_.dtype),
                plain_.bytes().data() + std::size_t(t) * bytes, bytes);
}

}  // namespace switchyard::layer
