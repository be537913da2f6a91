// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/layer_source.h"

#include "switchyard/api/judge_support.h"
#include "switchyard/base/check.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/core/preset.h"
#include "switchyard/layer/synthetic.h"

namespace switchyard {

LayerSource::LayerSource(const RunOptions& o, const std::string& command) : o_(o) {
  require(
      o.finalize == "plain", command, ": finalize ", o.finalize,
      " ends layers of several ranks that hold the same tokens; ask for parallel ttp and tp = 2, "
      "or for finalize plain");
  require(o.placement.empty(), command,
          ": a placement spreads slots over ranks, and here each layer has one slot for each "
          "expert; run on ranks, or leave the placement out");
  if (o.checkpoint.empty()) {
    require(!o.layer, command, ": layer = ", o.layer.value_or(0),
            " belongs to a checkpoint; a preset is one layer, leave it out");
    layers_ = {{0, make_preset(o.preset).hidden}};
    return;
  }
  checkpoint_ = std::make_unique<Checkpoint>(Checkpoint::open(o.checkpoint));
  for (const LayerEntry& entry : chosen_layers(*checkpoint_, o.layer))
    layers_.push_back({entry.index, entry.hidden});
}

std::vector<std::string> LayerSource::notices() const {
  return checkpoint_ ? checkpoint_->impl().notices() : std::vector<std::string>();
}

BuildOptions LayerSource::options_for(const Entry& entry, const std::string& format) const {
  BuildOptions build = o_.build;
  if (!format.empty()) build.format = format;
  if (!o_.calibrate.empty())
    build.calibration = read_calibration(o_.calibrate, entry.index, entry.hidden);
  return build;
}

MoeLayer LayerSource::build(const Entry& entry, const std::string& format) const {
  const BuildOptions build = options_for(entry, format);
  return checkpoint_ ? MoeLayer::from_checkpoint(*checkpoint_, entry.index, build)
                     : MoeLayer::from_preset(o_.preset, build);
}

PreparedLayer LayerSource::prepare(const Entry& entry, const std::string& format) const {
  return LayerBuilder::prepare(checkpoint_
                                   ? checkpoint_->impl().layer(entry.index)
                                   : layer::make_synthetic(make_preset(o_.preset), o_.build.seed),
                               options_for(entry, format));
}

}  // namespace switchyard
