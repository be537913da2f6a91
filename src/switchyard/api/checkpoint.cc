// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "switchyard/base/nearest.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/checkpoint/safetensors.h"

namespace switchyard {
namespace {

using checkpoint::SafetensorsFile;
using checkpoint::Tensor;

constexpr std::string_view kHidden = "hidden_states";

const Tensor& find_hidden(const SafetensorsFile& file, std::optional<std::int64_t> layer) {
  if (const Tensor* plain = file.find(kHidden)) return *plain;
  std::vector<std::string> held;
  for (const auto& [name, tensor] : file.tensors())
    if (name.starts_with("layer") && name.ends_with(cat(".", kHidden))) held.push_back(name);
  require(!held.empty(), file.path(), ": holds no tensor ", kHidden, " or layerN.", kHidden,
          "; add one of shape [tokens, hidden]");
  require(layer || held.size() == 1, file.path(), ": holds ", kHidden, " of ", held.size(),
          " layers; say which with a layer index");
  std::string wanted = layer ? cat("layer", *layer, ".", kHidden) : held.front();
  const Tensor* found = file.find(wanted);
  require(found != nullptr, file.path(), ": holds no tensor ", wanted, ", only ", join(held));
  return *found;
}

}  // namespace

struct Checkpoint::State {
  checkpoint::Checkpoint impl;
  std::vector<LayerEntry> layers;
};

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint Checkpoint::open(const std::string& path) {
  auto state = std::make_unique<State>(State{checkpoint::Checkpoint::open(path), {}});
  for (const checkpoint::LayerInfo& layer : state->impl.layers())
    state->layers.push_back({.index = layer.index,
                             .block = layer.block,
                             .format = layer.format,
                             .present = layer.present,
                             .is_mtp = layer.is_mtp});
  return Checkpoint(std::move(state));
}

const std::vector<LayerEntry>& Checkpoint::layers() const { return state_->layers; }
const checkpoint::Checkpoint& Checkpoint::impl() const { return state_->impl; }

std::vector<float> read_hidden_states(const std::string& path, std::optional<std::int64_t> layer) {
  SafetensorsFile file = SafetensorsFile::open(path);
  const Tensor& tensor = find_hidden(file, layer);
  require(tensor.shape.size() == 2 && tensor.elements() > 0, path, ": ", kHidden, " has shape ",
          checkpoint::show_shape(tensor.shape), ", [tokens, hidden] with at least one token is ",
          "needed");
  std::vector<float> out = checkpoint::read_floats(tensor, cat(path, ": ", kHidden));
  bool finite = std::all_of(out.begin(), out.end(), [](float v) { return std::isfinite(v); });
  require(finite, path, ": ", kHidden, " holds NaN or infinity; no scale can be set on those");
  return out;
}

}  // namespace switchyard
