// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/api/bench_allreduce.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm.h"

namespace switchyard::api {

/// One rank's inputs and outputs of a timed all-reduce. Every element is a pure function of seed,
/// rank, tensor, token and column, so that any process can make the first tokens of any rank.
class AllReduceTraffic {
 public:
  /// The first `tokens` tokens of `rank`.
  AllReduceTraffic(const BenchAllReduceOptions& options, std::int64_t tokens, int rank);

  /// The fused call.
  ops::AllReduceCall fused();
  /// The contribution as a tensor, for the separate steps.
  void* contribution() { return contribution_.data(); }
  /// The sum as a tensor, for the separate steps.
  void* sum() { return sum_.data(); }
  /// All outputs' bytes in one hexadecimal digest.
  std::string digest() const;
  /// Each output of the first `tokens` tokens, decoded.
  std::vector<std::pair<std::string, std::vector<double>>> decoded(std::int64_t tokens);
  /// Bytes of all outputs.
  std::int64_t output_bytes() const;

 private:
  using Bytes = std::vector<std::uint8_t>;
  void fill(Bytes& out, std::int64_t rows, std::uint64_t tensor);
  void make_experts();
  std::vector<double> decoded_codes(std::int64_t tokens);
  double scale_of(std::int64_t m, std::int64_t h) const;
  ops::NormArgs norm();

  BenchAllReduceOptions o_;
  std::int64_t tokens_;
  std::uint64_t rank_;
  float decode_scale_ = 0.0125f, encode_scale_ = 600;
  Bytes input_, residual_, gamma_, shared_, rows_, contribution_, sum_;
  std::vector<float> weights_;
  std::vector<std::int32_t> index_;
  Bytes output_, residual_out_, norm_out_, quant_out_, scale_out_;
};

/// How far each output of `mine`'s first `tokens` tokens is from the oracle of all ranks.
std::vector<OutputError> judge_traffic(const BenchAllReduceOptions& o, std::int64_t tokens,
                                       AllReduceTraffic& mine);

/// Whether a pattern takes expert rows.
bool is_moe(ops::AllReduceFusionPattern p);
/// The quantised output of a bench.
ops::AllReduceQuant quant_of(const BenchAllReduceOptions& o);

}  // namespace switchyard::api
