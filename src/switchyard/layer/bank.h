// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/layer/layer.h"

namespace switchyard::layer {

/// What a bank is made of.
struct BankArgs {
  const ops::FfnShape& shape;
  const leaves::Leaf& leaf;
  const checkpoint::ExpertSource& source;
  const Activation& activation;
  const LayerOptions& options;
};

/// Packs the source's experts for the leaf and gathers their static input scales.
///
/// missing_scale is set when a static quantiser has an expert without its scale; the bank's scales
/// are then 1 until set_static_scales().
/// Errors:  UsageError for an expert that does not fit `shape`.
ExpertBank build_bank(const BankArgs& args, bool& missing_scale);

/// The same bank in memory of its own, copied by all threads of `pool` or by the GPU.
ExpertBank copy_bank(const ExpertBank& bank, ThreadPool& pool);

/// The same bytes in a mapping of its own, copied by all threads of `pool`.
HostBuffer copy_buffer(const HostBuffer& from, ThreadPool& pool);

/// What was tuned for calls of `shape` by `leaf`.
/// Errors: UsageError for a tuned tactic that they cannot run.
TacticList tuned_for(const leaves::Leaf& leaf, const ops::FfnShape& shape,
                     const LayerOptions& options);

/// Replaces the static scales of a packed bank.
///
/// Shapes:  scales.fc2 [experts].
void set_static_scales(ExpertBank& bank, StaticScales scales);

/// The activation quantiser that really runs: the format's, or none or f32 by the mode.
formats::ActivationQuant effective_quant(formats::ActivationQuant declared, ActivationMode mode);

}  // namespace switchyard::layer
