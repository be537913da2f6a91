// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/base/host_buffer.h"
#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/core/forward.h"
#include "switchyard/ops/projection/projection.h"

namespace switchyard::layer {

class Layer;
struct LayerOptions;

/// The packed projections around the routed experts of a latent layer.
struct LatentBank {
  ops::ProjectionShape down_shape, up_shape;
  HostBuffer down, up;
};

/// Packs the projections of `weights`.
/// Errors:  UsageError when they do not fit the problem, are quantised, or the norm is no norm.
LatentBank build_latent(const checkpoint::LayerWeights& weights, const LayerOptions& options);

/// Bytes of workspace that each of the two calls below needs.
std::size_t latent_workspace_bytes(const LatentBank& bank, std::int64_t tokens, int threads);

/// What project_down() reads: the call's hidden states, and how.
struct LatentInput {
  const ForwardArgs& args;
  Dtype dtype;         // of the hidden states
  bool rounds = true;  // false: f32 mode, whatever the layer's is
};

/// latent = x . down^T in fp32, from the hidden states as they are.
///
/// Shapes:  latent [tokens, L] dense.
void project_down(const Layer& layer, const LatentInput& input, float* latent,
                  std::span<std::byte> workspace);

/// What finalize leaves in latent space, on its way out: norm, up-projection, shared expert, the
/// output's rounding.
///
/// Shapes:  sum [tokens, L] dense, factor applied; addend [tokens, H] dense or null.
void project_up(const Layer& layer, const ForwardArgs& args, const float* sum, const float* addend,
                std::span<std::byte> workspace);

}  // namespace switchyard::layer
