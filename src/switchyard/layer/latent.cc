// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/latent.h"

#include <algorithm>
#include <cmath>

#include "switchyard/base/check.h"
#include "switchyard/layer/layer.h"

namespace switchyard::layer {
namespace {

void check_norm(const checkpoint::LatentProjection& latent, std::int64_t width) {
  if (latent.norm.empty()) return;
  require(std::int64_t(latent.norm.size()) == width, "the latent norm holds ", latent.norm.size(),
          " weights, the latent width is ", width);
  require(std::isfinite(latent.norm_eps) && latent.norm_eps >= 0, "the latent norm's epsilon is ",
          latent.norm_eps, "; it must be finite and not negative");
  for (float w : latent.norm)
    require(std::isfinite(w), "the latent norm holds the weight ", w, "; it must be finite");
}

HostBuffer packed(const ops::ProjectionShape& shape, const char* what, const formats::Matrix& w) {
  HostBuffer out(shape.layout().code_bytes());
  ops::pack_projection(shape, what, w, out.bytes());
  return out;
}

ops::ProjectionArgs call(const Layer& layer, const ForwardArgs& a, std::span<std::byte> workspace) {
  ops::ProjectionArgs p;
  p.tokens = a.tokens;
  p.pool = layer.options().pool.get();
  p.isa = layer.options().isa;
  p.workspace = workspace;
  return p;
}

}  // namespace

LatentBank build_latent(const checkpoint::LayerWeights& w, const LayerOptions& o) {
  const Problem& p = w.problem;
  require(w.latent.has_value(), "layer ", w.layer, " has experts of latent width ", p.latent,
          " and no latent projections; give both, or a latent width of 0");
  check_norm(*w.latent, p.latent);
  const bool rounds = o.activations != ActivationMode::kF32;
  LatentBank bank{.down_shape = {.in = p.hidden,
                                 .out = p.latent,
                                 .weights = w.latent->down.layout,
                                 .dtype = o.dtype,
                                 .rounds = rounds},
                  .up_shape = {.in = p.latent,
                               .out = p.hidden,
                               .weights = w.latent->up.layout,
                               .dtype = o.dtype,
                               .rounds = rounds},
                  .down = {},
                  .up = {}};
  bank.down = packed(bank.down_shape, "the latent down-projection", w.latent->down);
  bank.up = packed(bank.up_shape, "the latent up-projection", w.latent->up);
  return bank;
}

std::size_t latent_workspace_bytes(const LatentBank& bank, std::int64_t tokens, int threads) {
  return std::max(ops::projection_workspace_bytes(bank.down_shape, tokens, threads),
                  ops::projection_workspace_bytes(bank.up_shape, tokens, threads));
}

void project_down(const Layer& layer, const LatentInput& input, float* latent,
                  std::span<std::byte> workspace) {
  const LatentBank& bank = *layer.latent();
  ops::ProjectionShape shape = bank.down_shape;
  shape.rounds = shape.rounds && input.rounds;
  ops::ProjectionArgs p = call(layer, input.args, workspace);
  p.shape = &shape;
  p.packed = bank.down.data();
  p.x_dtype = input.dtype;
  p.x = input.args.hidden;
  p.x_stride = input.args.hidden_stride;
  p.out_dtype = Dtype::kF32;
  p.out = latent;
  p.out_stride = shape.out;
  ops::projection_cpu(p);
}

void project_up(const Layer& layer, const ForwardArgs& a, const float* sum, const float* addend,
                std::span<std::byte> workspace) {
  const LatentBank& bank = *layer.latent();
  const checkpoint::LatentProjection& weights = *layer.weights().latent;
  ops::ProjectionArgs p = call(layer, a, workspace);
  p.shape = &bank.up_shape;
  p.packed = bank.up.data();
  p.x_dtype = Dtype::kF32;
  p.x = sum;
  p.x_stride = bank.up_shape.in;
  p.norm = weights.norm.empty() ? nullptr : weights.norm.data();
  p.norm_eps = weights.norm_eps;
  p.addend = addend;
  p.out_dtype = layer.options().dtype;
  p.out = a.out;
  p.out_stride = a.out_stride;
  ops::projection_cpu(p);
}

}  // namespace switchyard::layer
