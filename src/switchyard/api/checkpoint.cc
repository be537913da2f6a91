// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/checkpoint.h"

#include <utility>

#include "switchyard/checkpoint/loader.h"

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
                             .present = layer.present,
                             .is_mtp = layer.is_mtp});
  return Checkpoint(std::move(state));
}

const std::vector<LayerEntry>& Checkpoint::layers() const { return state_->layers; }
const checkpoint::Checkpoint& Checkpoint::impl() const { return state_->impl; }

}  // namespace switchyard
