// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/checkpoint/block_reader.h"
#include "switchyard/checkpoint/scheme.h"
#include "switchyard/checkpoint/weight_source.h"

namespace switchyard::checkpoint {

/// A linear layer to be found: the module's name below the block and its logical weight [rows,
/// cols].
struct LinearArgs {
  std::string base;
  std::int64_t rows = 0, cols = 0;
  const Scheme* scheme = nullptr;
};

/// Finds the tensors of a linear layer in its scheme's spelling, and checks types, shapes and
/// scales.
/// Errors: nothing is thrown; faults are noted in `reader` and nothing is returned.
std::optional<WeightSource> find_linear(BlockReader& reader, const LinearArgs& args);

/// The layout of an unquantised weight stored as `type`: F32 becomes bf16.
formats::WeightLayout plain_layout(TensorType type);
/// What unquantised weights, routers and norms are stored as.
const std::vector<TensorType>& float_types();
/// What block scales of the scheme are stored as.
std::vector<TensorType> scale_types(const Scheme& scheme);
/// What codes of the scheme are stored as.
std::vector<TensorType> code_types(const Scheme& scheme);
/// A plane of scales; E8M0 that is stored as U8 is marked as E8M0.
Plane as_scales(Plane plane, const Scheme& scheme);
/// A stored second-level scale as the factor that multiplies: its reciprocal where the schema
/// divides, and NaN for a divisor of infinity, which would make a factor of zero.
float multiplying(float stored, const Scheme& scheme);

/// Notes a fault for NaN, infinite or negative block scales, or global and input scales out of
/// range. Returns false when there was one.
bool check_scales(BlockReader& reader, const WeightSource& w);

}  // namespace switchyard::checkpoint
