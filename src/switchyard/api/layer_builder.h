// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "switchyard/api/moe_layer.h"
#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/core/plan.h"
#include "switchyard/layer/layer.h"
#include "switchyard/resolve/report.h"

namespace switchyard {

/// What a MoeLayer holds.
struct MoeLayer::State {
  std::unique_ptr<layer::Layer> layer;
  resolve::Report report;
  Plan plan;  // what the report decided; the trace of a forward is compared with it
  std::vector<std::string> notices;
  bool requantised = false;
};

/// Joins canonical weights, the resolver's verdict and a packed layer; every entry point ends here.
struct LayerBuilder {
  /// `spare_calibration` takes the place of options.calibration where that is empty.
  /// Errors: UsageError, CannotServe, and DeviceError when a pinned device is not there.
  static MoeLayer build(checkpoint::LayerWeights weights, const BuildOptions& options,
                        const std::vector<float>& spare_calibration = {});
  /// The same layer with packed weights in memory of its own. Errors: as layer::Layer::copy().
  static MoeLayer copy(const MoeLayer& layer);
  /// True when the routed experts were converted from another format.
  static bool requantised(const MoeLayer& layer) { return layer.state_->requantised; }
  /// What the resolver decided that the layer runs.
  static const Plan& plan(const MoeLayer& layer) { return layer.state_->plan; }
};

}  // namespace switchyard
