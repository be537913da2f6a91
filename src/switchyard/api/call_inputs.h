// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/api/judge.h"
#include "switchyard/core/forward.h"
#include "switchyard/core/problem.h"
#include "switchyard/layer/judge.h"

namespace switchyard {

/// The seeded calls that a layer is timed and judged on.
struct Traffic {
  std::int64_t tokens = 0;
  RoutingSkew routing = RoutingSkew::kUniform;
  std::uint64_t seed = 1;
};

/// Some tokens of a batch, to be judged.
///
/// Shapes:  hidden [count, H]; logits [count, E+Z]; token_ids, picked [count], the latter in the
///          batch.
struct Sample {
  std::vector<float> hidden, logits;
  std::vector<std::int64_t> token_ids, picked;

  /// The sample as a judge takes it; it must outlive that.
  layer::JudgeArgs args() const;
};

/// Seeded inputs of a layer's calls, and room for what a call gives.
class CallInputs {
 public:
  /// `vocab` bounds the token ids, where a table over them chooses experts; else 0.
  CallInputs(const Problem& problem, std::int64_t vocab, const Traffic& traffic);

  /// Fills in call number `call`: its own logits and token ids; the output is poisoned.
  void fill(std::int64_t call);
  /// The filled call. Its outputs are out() and ids().
  ForwardArgs args(std::span<std::byte> workspace);
  /// Up to `most` tokens spread over the batch.
  Sample sample(std::int64_t most) const;
  /// Whether the sampled tokens' outputs, as a judge had them alone, have the bits of the batch.
  bool same_bits(const Sample& sample, const std::vector<double>& alone) const;

  /// The hidden states in the layer's dtype, [tokens, H].
  std::span<const std::byte> typed() const { return typed_; }
  /// [tokens, E+Z].
  std::vector<float>& logits() { return logits_; }
  /// [tokens].
  std::vector<std::int64_t>& token_ids() { return token_ids_; }
  /// [tokens, H] in the layer's dtype.
  std::vector<std::byte>& out() { return out_; }
  /// [tokens, k].
  std::vector<std::int32_t>& ids() { return ids_; }
  const std::vector<std::int32_t>& ids() const { return ids_; }

 private:
  void fill_logits(std::int64_t call);
  void fill_token_ids(std::int64_t call);

  const Problem& p_;
  std::int64_t vocab_;
  Traffic traffic_;
  std::int64_t experts_;
  std::vector<float> logits_;
  std::vector<std::int32_t> ids_;
  std::vector<float> hidden_;
  std::vector<std::int64_t> token_ids_;
  std::vector<std::byte> typed_, out_;
};

}  // namespace switchyard
