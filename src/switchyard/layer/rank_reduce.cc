// SPDX-License-Identifier: Apache-2.0
// The scheduler of ranks that reduce: route, [gather,] experts, sum of shares or fused all-reduce.
#include <algorithm>
#include <functional>

#include "switchyard/layer/rank_scratch.h"

namespace switchyard::layer {

/// The shares of one block: the held experts' sum times the factor, and this rank's shard of the
/// shared expert, where it is not added behind a latent layer's sum.
void RankLayer::run_block(int b, const ForwardArgs& a, Scratch& s) const {
  const comm::TokenBlock block = reduction_->block(b);
  if (block.tokens == 0) return;
  const std::int64_t element = std::int64_t(size_of(payload_.dtype));
  const std::size_t choices = std::size_t(block.tokens * shape_.top_k);
  const bool gathered = block.hidden != nullptr;
  const InputRows x = gathered ? InputRows{block.hidden, block.hidden_stride} : s.x;
  localise({gathered ? block.ids : s.placed.data(), choices},
           {gathered ? block.weights : s.routed.weights.data(), choices}, b, s.local_ids.data(),
           s.local_weights.data());
  const bool shared = layer_->shared() != nullptr && layer_->latent() == nullptr;
  if (shared) {
    ForwardArgs of_block = a;
    of_block.tokens = block.tokens;
    of_block.hidden = x.data;
    of_block.hidden_stride = x.stride / element;
    if (gathered) of_block.capture = nullptr;  // it is for this rank's own tokens
    run_shared(*layer_, of_block, s.parts);
  }
  run_rows({.count = block.tokens,
            .hidden = x.data,
            .hidden_stride = x.stride,
            .ids = s.local_ids.data(),
            .weights = s.local_weights.data(),
            .factor = block.factor,
            .addend = shared ? s.parts.shared_out.data() : nullptr,
            .shares = block.shares,
            .share_stride = block.share_stride},
           s);
}

void RankLayer::reduce(const ForwardArgs& a, Scratch& s) {
  const bool shared_behind = layer_->shared() != nullptr && layer_->latent() != nullptr;
  if (a.tokens > 0 && shared_behind) run_shared(*layer_, a, s.parts);
  if (own_tokens()) note(RankStep::kDispatch);
  reduction_->begin({.tokens = a.tokens,
                     .hidden = s.x.data,
                     .hidden_stride = s.x.stride,
                     .ids = s.placed.data(),
                     .weights = s.routed.weights.data(),
                     .factor = s.routed.factor,
                     .wire = wire_});
  if (options_.balanced) see_counts(s);
  note(RankStep::kExperts);
  for (int b = 0; b < reduction_->num_blocks(); ++b) run_block(b, a, s);
  start_set();
  Finisher f = finisher(a, s);
  note(RankStep::kCombine);
  reduction_->finish({&f, Finisher::row});
}

/// The held experts' rows, unweighted and rounded, and this rank's shard of the shared expert; the
/// fused all-reduce does the rest.
void RankLayer::finish_fused(const ForwardArgs& a, Scratch& s, const BehindLayer* behind) {
  const std::size_t choices = std::size_t(a.tokens * shape_.top_k);
  localise({s.placed.data(), choices}, {s.routed.weights.data(), choices}, 0, s.local_ids.data(),
           s.local_weights.data());
  if (options_.balanced) see_counts(s);
  const bool shared = layer_->shared() != nullptr;
  if (shared && a.tokens > 0) run_shared(*layer_, a, s.parts);
  note(RankStep::kExperts);
  if (a.tokens > 0)
    run_rows({.count = a.tokens,
              .hidden = s.x.data,
              .hidden_stride = s.x.stride,
              .ids = s.local_ids.data(),
              .weights = s.local_weights.data(),
              .unfinalised = fused_->rows()},
             s);
  start_set();
  const LocalOutput local{.tokens = a.tokens,
                          .ids = s.local_ids.data(),
                          .weights = s.local_weights.data(),
                          .factor = s.routed.factor,
                          .shared = shared ? s.parts.shared_out.data() : nullptr};
  note(RankStep::kCombine);
  behind != nullptr ? fused_->finish(local, *behind)
                    : fused_->finish_plain(local, a.out, a.out_stride);
}

/// Under a reduction every rank sees all tokens' choices itself: its own under attention TP, else
/// every rank's, as slots.
void RankLayer::see_counts(const Scratch& s) {
  note(RankStep::kGather);
  if (!own_tokens())
    std::transform(counts_.begin(), counts_.end(), s.counts.begin(), counts_.begin(), std::plus());
  for (int b = 0; own_tokens() && b < reduction_->num_blocks(); ++b) {
    const comm::TokenBlock block = reduction_->block(b);
    const std::size_t choices = std::size_t(block.tokens * s.routed.width);
    for (std::int32_t slot : std::span(block.ids, choices))
      if (slot >= 0 && slot < slots_.num_slots())
        ++counts_[std::size_t(slots_.experts()[std::size_t(slot)])];
  }
  cycle_.gathered();
}

}  // namespace switchyard::layer
