// SPDX-License-Identifier: Apache-2.0
#include "switchyard/leaves/gate.h"

#include "switchyard/core/gates.h"
#include "switchyard/ops/grouped_ffn/tile_ffn.h"

namespace switchyard::leaves {
namespace {

Eligibility require_shapes(const FormatSpec& spec, const Problem& p, const Deployment& d) {
  bool four_bit = formats::bits_of(spec.weights.element) == 4;
  return first_reject({four_bit ? require_even_widths(p) : Eligibility::yes(), require_slots(p, d),
                       require_no_lora(d)});
}

/// A zero expert returns the token, which does not fit a sum in latent space.
Eligibility require_one_space(const Problem& p) {
  if (p.latent == 0 || p.routing.zero_experts == 0) return Eligibility::yes();
  return Eligibility::no(
      Reject::kRoutingUnsupported,
      cat("the layer has ", p.routing.zero_experts, " zero experts and a latent width of ",
          p.latent, ", this leaf serves one or the other: a zero expert returns the full token"));
}

Eligibility require_no_latent(const Problem& p) {
  if (p.latent == 0) return Eligibility::yes();
  return Eligibility::no(Reject::kPathNotEnabled,
                         cat("the routed experts work in a latent width of ", p.latent,
                             ", latent projections are built for the cpu only; use the cpu leaf"));
}

/// The architecture that the CUDA twins are compiled for (cmake/twins.cmake: sm_90a): machine code
/// runs on its own only.
constexpr int kCudaArch = 90;

/// A GPU for the kernels, where there are any: no other GPU helps a leaf without them.
Eligibility require_arch(const FormatSpec& spec, const Deployment& d) {
  return spec.cuda_ffn == nullptr ? Eligibility::yes() : require_sm(d, kCudaArch);
}

/// What the kernels are limited to, where there are any.
Eligibility require_built_for(const Deployment& d) {
  if (d.env.sm != kCudaArch)
    return Eligibility::no(
        Reject::kSmUnsupported,
        cat("the GPU is sm ", d.env.sm, ", the kernels of this binary are built for sm ", kCudaArch,
            " only"));
  return Eligibility::yes();
}

/// Every TP shard can be packed for the kernels.
Eligibility require_shards(const FormatSpec& spec, const Problem& p, const Deployment& d) {
  if (spec.cuda_ffn == nullptr) return Eligibility::yes();
  const bool plain = p.activations == ActivationMode::kBf16;
  return ops::can_tile_shards({.layout = spec.weights,
                               .quant = plain ? formats::ActivationQuant::kNone : spec.activation,
                               .hidden = p.hidden,
                               .inter = p.inter,
                               .tp = d.tp});
}

Eligibility require_kernels(const FormatSpec& spec, const Deployment& d) {
  if (spec.cuda_ffn != nullptr) return require_built_for(d);
  return Eligibility::no(Reject::kPathNotEnabled,
                         cat("no CUDA kernels of ", show_format(spec.format),
                             " are built in this version, for any GPU; use the cpu leaf"));
}

}  // namespace

Eligibility cpu_gate(const FormatSpec& spec, const Problem& p, const Deployment& d) {
  return first_reject({require_quant(p, spec.format), require_device(d, Device::kCpu),
                       require_shapes(spec, p, d), require_one_space(p)});
}

Eligibility cuda_gate(const FormatSpec& spec, const Problem& p, const Deployment& d) {
  return first_reject({require_quant(p, spec.format), require_device(d, Device::kCuda),
                       require_dep(d, "cuda"), require_arch(spec, d),
                       require_dtype(p, {Dtype::kBf16, Dtype::kFp16}), require_no_f32_mode(p),
                       require_shapes(spec, p, d), require_no_latent(p), require_shards(spec, p, d),
                       require_kernels(spec, d)});
}

}  // namespace switchyard::leaves
