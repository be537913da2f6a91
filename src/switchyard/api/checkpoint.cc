// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/checkpoint.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "switchyard/checkpoint/inspect.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/checkpoint/moe_io.h"

namespace switchyard {
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
                             .hidden = state->impl.problem(layer.index).hidden,
                             .present = layer.present,
                             .is_mtp = layer.is_mtp});
  return Checkpoint(std::move(state));
}

const std::vector<LayerEntry>& Checkpoint::layers() const { return state_->layers; }
const checkpoint::Checkpoint& Checkpoint::impl() const { return state_->impl; }

std::vector<float> read_calibration(const std::string& path, std::int64_t layer,
                                    std::int64_t hidden) {
  return checkpoint::read_hidden_states(checkpoint::SafetensorsFile::open(path), layer, hidden);
}

std::string inspect_json(const std::string& path) {
  return checkpoint::to_json(checkpoint::inspect(path)).dump();
}

}  // namespace switchyard
