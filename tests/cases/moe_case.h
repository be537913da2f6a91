// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/api/moe_layer.h"
#include "switchyard/base/host_buffer.h"
#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/layer/layer.h"
#include "switchyard/leaves/leaf.h"

namespace switchyard::test {

/// Random values whose rows, 16-column groups and 128 x 128 blocks have gains of their own, so that
/// no two neighbouring scales of any format are alike.
///
/// Shapes:  [rows, cols] row-major.
std::vector<float> weight_values(std::int64_t rows, std::int64_t cols, std::uint64_t seed);
/// The same, stored as `layout`; 4-bit layouts need even cols.
formats::Matrix make_matrix(const formats::WeightLayout& layout, std::int64_t rows,
                            std::int64_t cols, std::uint64_t seed);

/// Deliberate mistakes; a bound that one of them keeps proves nothing.
enum class Fault {
  kSwappedPairs,  // columns 2c and 2c + 1 exchanged: nibble order, or pair order
  kShiftedScales,
  kSwappedHalves,  // upper and lower half of the output rows
  kSwappedGateUp,
  kDroppedExpert,
  kFactorTwice
};
/// The faults and their names.
extern const std::vector<std::pair<Fault, std::string>> kFaults;

/// `m` with one of the first three faults; none where it cannot show (no scales, or one only).
std::optional<formats::Matrix> damaged(const formats::Matrix& m, Fault fault);
/// A layer with the fault; none where it cannot show.
std::optional<checkpoint::LayerWeights> damaged(const checkpoint::LayerWeights& w, Fault fault);

/// A small complete problem of `leaf`'s format with a factor other than 1: H 160, I 96, E 6, k 3.
Problem small_problem(const leaves::Leaf& leaf);
/// Weights of `problem`, routed and shared, stored as `leaf` wants them; every expert distinct.
checkpoint::LayerWeights make_weights(const Problem& problem, const leaves::Leaf& leaf,
                                      std::uint64_t seed = 1);

/// Instruction tiers that have twins and that this machine can run; portable is the first.
std::vector<CpuIsa> runnable_tiers();
/// Builds a layer for one tier. `options` carry mode, dtype and threads (2 unless set).
MoeLayer build_layer(checkpoint::LayerWeights weights, BuildOptions options, CpuIsa isa);

/// One call's memory: seeded tokens in the layer's dtype, outputs and workspace to be poisoned.
struct Call {
  Call(const layer::Layer& layer, std::int64_t tokens, std::uint64_t seed = 1);

  /// Views of this call's memory.
  ForwardArgs args();
  /// Poisons output and workspace, runs, and returns the output.
  std::vector<std::byte> run(const std::function<void(ForwardArgs&)>& change = nullptr);
  /// The output as numbers.
  std::vector<double> values() const;
  /// Rounds `x` [tokens, H] to the layer's dtype as the call's input.
  void set_hidden(const std::vector<float>& x);

  const layer::Layer& layer;
  std::int64_t tokens;
  std::vector<std::byte> hidden, out;
  std::vector<float> exact;  // what `hidden` holds
  std::vector<std::int64_t> token_ids;
  HostBuffer workspace;
};

/// Caller-given routing with distinct weights: dense [tokens, k].
struct GivenRouting {
  GivenRouting(const Problem& problem, std::int64_t tokens);
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

/// The routed experts' sum in double for given ids and weights, factor applied, nothing shared.
std::vector<double> ffn_oracle(const Call& call, const GivenRouting& routing, double factor);
/// The leaf's own rows in fp32 before any weight, [tokens * k, H]; rows of skipped choices are 0.
std::vector<float> fp32_rows(const Call& call, const GivenRouting& routing);

}  // namespace switchyard::test
