// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/base/arena.h"
#include "switchyard/layer/layer.h"
#include "switchyard/layer/token_routing.h"

namespace switchyard::layer {

/// The parts of a forward's workspace; the last one belongs to whichever stage is running.
struct Parts {
  std::span<float> logits;
  std::span<std::int32_t> ids, shared_ids;
  std::span<float> weights, shared_weights, shared_out;
  std::span<float> latent, latent_sum;  // what latent experts read, and what finalize leaves
  std::span<std::byte> stage;
};

// The steps that a scheduler of one rank and one of several have in common.

/// Takes the parts of a forward of up to `tokens` tokens.
Parts take_parts(Arena& arena, const Layer& layer, std::int64_t tokens);
/// The same where calls of the routed experts have the shape `called`.
Parts take_parts(Arena& arena, const Layer& layer, std::int64_t tokens,
                 const ops::FfnShape& called);
/// Checks one call. Errors: UsageError for a broken argument, or scales that calibration must set.
void check_forward(const Layer& layer, const ForwardArgs& args);
/// Routes the call's tokens, or takes the caller's choice.
void choose_experts(const Layer& layer, const ForwardArgs& args, const Parts& parts,
                    Routed& routed);
/// Runs the shared expert into parts.shared_out.
void run_shared(const Layer& layer, const ForwardArgs& args, Parts& parts);
/// Notes what runs, where the call asks for it.
void write_trace(const Layer& layer, const ForwardArgs& args);

/// The checks of check_forward() and of an unfinalised output; reads nothing behind the pointers.
/// Errors:  UsageError with field, value and limit.
void check_one_rank_forward(const Layer& layer, const ForwardArgs& args);
/// The check of a size query's tokens alone.
void check_forward_tokens(const Layer& layer, std::int64_t tokens);

/// The scheduler of one rank: route, shared expert, routed experts, finalize.
void single_rank_forward(const Layer& layer, const ForwardArgs& args);
/// Its workspace; reads the same layout as the forward.
std::size_t single_rank_workspace(const Layer& layer, std::int64_t max_tokens);

}  // namespace switchyard::layer
