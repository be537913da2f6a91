// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/device_share.h"

#include <cmath>

#include "switchyard/layer/device_rank.h"

namespace switchyard::test {
namespace {

ops::FfnArgs call_of(const layer::Layer& part, const Call& call) {
  ops::FfnArgs f;
  f.tokens = call.tokens;
  f.x_dtype = part.options().dtype;
  f.x = call.hidden.data();
  f.x_stride = part.problem().hidden;
  return f;
}

std::vector<float> shared_shard(const layer::Layer& part, const Call& call) {
  const std::vector<std::int32_t> ids(std::size_t(call.tokens), 0);
  const std::vector<float> ones(ids.size(), 1.0F);
  std::vector<float> out(call.exact.size(), std::nanf(""));
  ops::FfnArgs f = call_of(part, call);
  f.ids = ids.data();
  f.weights = ones.data();
  f.out = out.data();
  layer::experts_from_host(*part.options().shared_leaf, *part.shared(), f);
  return out;
}

}  // namespace

Chosen chosen_on_device(Call& call) {
  const std::size_t choices = std::size_t(call.tokens * call.layer.problem().top_k());
  Chosen out{std::vector<std::int32_t>(choices, -7), std::vector<float>(choices, std::nanf(""))};
  call.run([&](ForwardArgs& a) {
    a.ids_out = out.ids.data();
    a.weights_out = out.weights.data();
  });
  return out;
}

Share device_share_of(const layer::Layer& part, const Call& call, const Chosen& chosen) {
  const ops::FfnShape& shape = part.routed().shape;
  const Problem& p = part.problem();
  const std::int64_t k = p.top_k(), width = shape.top_k;
  const std::int64_t begin = part.options().held.begin;
  const std::int64_t held = shape.experts - shape.unscaled_choices;
  Share out;
  for (std::int64_t t = 0; t < call.tokens; ++t)
    for (std::int64_t j = 0; j < width; ++j) {
      const bool fused = j >= k;
      const std::size_t at = std::size_t(t * k + (fused ? 0 : j));
      const std::int32_t id = fused ? std::int32_t(p.num_experts() + j - k) : chosen.ids[at];
      const std::int64_t local = id - begin, most = fused ? shape.experts : held;
      const bool here = id >= 0 && shape.inter > 0 && local >= 0 && local < most &&
                        (fused || id < p.num_experts());
      out.chosen.push_back(id);
      out.ids.push_back(here ? std::int32_t(local) : -1);
      out.weights.push_back(fused ? 1.0F : chosen.weights[at]);
    }
  out.rows.assign(out.ids.size() * std::size_t(shape.hidden), std::nanf(""));
  if (call.tokens == 0) return out;
  ops::FfnArgs f = call_of(part, call);
  f.ids = out.ids.data();
  f.weights = out.weights.data();
  f.rows_dtype = Dtype::kF32;
  f.rows = out.rows.data();
  layer::experts_from_host(*part.options().leaf, part.routed(), f);
  if (part.shared() != nullptr) out.shared = shared_shard(part, call);
  return out;
}

}  // namespace switchyard::test
