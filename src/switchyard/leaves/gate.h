// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "switchyard/leaves/leaf.h"

namespace switchyard::leaves {

/// What one format's file states; its two leaves and both gate chains follow from it.
struct FormatSpec {
  std::string_view format;  // the identity's last segment
  std::string_view doc;     // one sentence for the README
  formats::WeightLayout weights;
  formats::ActivationQuant activation = formats::ActivationQuant::kNone;
  const ops::ExpertFfn* cpu_ffn = nullptr;
  const ops::ExpertFfn* cuda_ffn = nullptr;  // null: kernels not built, path_not_enabled
};

/// The CPU chain, first rejection wins: format, device, shapes, slots, adapters, no zero experts
/// beside a latent width. Every dtype, routing, activation,
/// bias and activation mode is served.
Eligibility cpu_gate(const FormatSpec& spec, const Problem& p, const Deployment& d);
/// The CUDA chain, first rejection wins: format, device, dependency, architecture, dtype, f32 mode,
/// shapes, slots, adapters, no latent width, tiles for every TP shard, kernels built.
Eligibility cuda_gate(const FormatSpec& spec, const Problem& p, const Deployment& d);

/// The two leaves that `spec` describes; all of it is compile-time data.
template <const FormatSpec& spec>
constexpr FormatLeaves make_leaves() {
  Leaf cpu{
      .id = {"switchyard", to_string(Device::kCpu), "fused_moe", spec.format},
      .device = Device::kCpu,
      .doc = spec.doc,
      .weights = spec.weights,
      .activation = spec.activation,
      .can_implement = [](const Problem& p, const Deployment& d) { return cpu_gate(spec, p, d); },
      .ffn = spec.cpu_ffn};
  Leaf cuda = cpu;
  cuda.id.technique = to_string(Device::kCuda);
  cuda.device = Device::kCuda;
  cuda.can_implement = [](const Problem& p, const Deployment& d) { return cuda_gate(spec, p, d); };
  cuda.ffn = spec.cuda_ffn;
  return {cpu, cuda};
}

}  // namespace switchyard::leaves
