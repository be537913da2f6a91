// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/update.h"

#include <algorithm>
#include <optional>

#include "switchyard/base/check.h"
#include "switchyard/ops/grouped_ffn/expert_packer.h"

namespace switchyard::layer {
namespace {

/// What one expert declares; FC1's is the larger of its two projections'.
struct Declared {
  std::optional<float> fc1, fc2;
};

Declared declared_scales(const Replacement& r) {
  const checkpoint::ExpertWeights& w = r.weights;
  const std::optional<float> up = w.up.input_scale, down = w.down.input_scale;
  const std::optional<float> gate = w.gate ? w.gate->input_scale : up;
  require(up.has_value() == down.has_value() && up.has_value() == gate.has_value(),
          "update_expert: expert ", r.id, " declares an input_scale for some of its projections; ",
          "give all of them or none");
  if (!up) return {};
  return {std::max(*up, *gate), down};
}

/// The FC2 scale that the expert gets. FC1's is the layer's, whatever the expert declares below it.
float static_fc2(const ExpertBank& bank, const Replacement& r) {
  const float kept = bank.scales.fc2[std::size_t(r.slot)];
  if (!formats::is_static(bank.shape.quant)) return kept;
  const Declared d = declared_scales(r);
  if (!d.fc1) return kept;
  require(*d.fc1 <= bank.scales.fc1, "update_expert: expert ", r.id, "'s FC1 input scale ", *d.fc1,
          " exceeds the layer's ", bank.scales.fc1,
          ", which all experts share and which would change their results; build the layer anew");
  return *d.fc2;
}

void pack_beside(const ExpertBank& bank, const leaves::Leaf& leaf,
                 const checkpoint::ExpertWeights& part, PackedExpert& out) {
  const std::size_t bytes = bank.layout.bytes;
  if (bank.device_packed == nullptr) {
    out.bytes = HostBuffer(bytes);
    return leaf.ffn->pack(bank.shape, bank.layout, part, out.fc2_scale, out.bytes.bytes());
  }
  out.device_bytes = std::make_shared<DeviceMemory>(bytes);
  ops::ExpertPacker packer(bank.shape, bank.layout);
  packer.pack(part, out.fc2_scale, static_cast<std::byte*>(out.device_bytes->data()));
  packer.wait();
}

}  // namespace

std::int64_t bytes_of(const checkpoint::ExpertWeights& w) {
  std::size_t bytes = sizeof(float) * (w.gate_bias.size() + w.up_bias.size() + w.down_bias.size());
  for (const formats::Matrix* m : {w.gate ? &*w.gate : nullptr, &w.up, &w.down})
    if (m != nullptr) bytes += m->codes.size() + m->scales.size();
  return std::int64_t(bytes);
}

std::int64_t ExpertUpdates::bytes_beside(std::int64_t e) const {
  std::lock_guard lock(mutex_);
  std::int64_t bytes = 0;
  for (const auto& [other, expert] : experts_)
    if (other != e) bytes += bytes_of(expert);
  return bytes;
}

checkpoint::ExpertSource replaceable(checkpoint::ExpertSource source,
                                     std::shared_ptr<const ExpertUpdates> updates) {
  return [source = std::move(source), updates = std::move(updates)](std::int64_t e) {
    if (auto replaced = updates->find(e)) return *std::move(replaced);
    return source(e);
  };
}

PackedExpert pack_replacement(const ExpertBank& bank, const leaves::Leaf& leaf,
                              const Replacement& r) {
  const checkpoint::ExpertWeights& w = r.weights;
  try {
    if (w.gate) w.gate->check("gate projection");
    w.up.check("up projection");
    w.down.check("down projection");
    PackedExpert out{r.slot, static_fc2(bank, r), {}};
    pack_beside(bank, leaf, slice_expert(w, r.part), out);
    return out;
  } catch (const UsageError& e) {
    const std::string text = e.what();
    if (text.starts_with("update_expert")) throw;
    throw UsageError(cat("update_expert: expert ", r.id, ": ", text));
  }
}

}  // namespace switchyard::layer
