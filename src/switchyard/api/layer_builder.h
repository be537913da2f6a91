// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/api/moe_layer.h"
#include "switchyard/api/strategies.h"
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
  /// Everything that is decided before a layer is packed.
  struct Prepared {
    std::unique_ptr<MoeLayer::State> state;  // without its layer
    checkpoint::LayerWeights weights;        // converted
    layer::LayerOptions options;             // without a pool
    Deployment deployment;
    api::Join join;                          // of ranks
    std::vector<std::int32_t> slot_experts;  // empty: expert e stands in slot e
    bool shared_gpu = false;                 // a test's: all ranks sit on GPU 0
  };

  /// `spare_calibration` takes the place of options.calibration where that is empty.
  /// Errors: UsageError, CannotServe, and DeviceError when a pinned device is not there.
  static MoeLayer build(checkpoint::LayerWeights weights, const BuildOptions& options,
                        const std::vector<float>& spare_calibration = {});
  /// The same layer with packed weights in memory of its own. Errors: as layer::Layer::copy().
  static MoeLayer copy(const MoeLayer& layer);
  /// The layer and so many copies that there are `count`. Errors: as copy().
  static std::vector<MoeLayer> copies(MoeLayer layer, std::int64_t count);
  /// What build() decides, on the ranks of `options` too, which build() has none of.
  /// Errors: as build(); CannotServe too when nothing can join the ranks.
  static Prepared prepare(checkpoint::LayerWeights weights, const BuildOptions& options);
  /// Tokens to calibrate static scales on, and a notice of them; none where a layer needs none.
  /// Shapes:  hidden [tokens, H]; token_ids [tokens].
  struct Calibration {
    std::vector<float> hidden;
    std::vector<std::int64_t> token_ids;
  };
  /// Those of `options`, else of `spare`, filled up to a least number with seeded ones; none where
  /// they are not `needed`.
  static std::optional<Calibration> calibration(const layer::Layer& layer, bool needed,
                                                const BuildOptions& options,
                                                std::vector<std::string>& notices,
                                                const std::vector<float>& spare = {});
  /// True when the routed experts were converted from another format.
  static bool requantised(const MoeLayer& layer) { return layer.state_->requantised; }
  /// What the resolver decided that the layer runs.
  static const Plan& plan(const MoeLayer& layer) { return layer.state_->plan; }
};

/// See LayerBuilder::prepare().
using PreparedLayer = LayerBuilder::Prepared;

}  // namespace switchyard
