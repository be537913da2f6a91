// The end of a tensor-parallel layer in one call: finalize, all-reduce, residual and norm.
#include <cstdio>
#include <vector>

#include "switchyard/api/switchyard.h"

using namespace switchyard;

int main() {
  constexpr std::int64_t kRanks = 4, kTokens = 3, kHidden = 256, kTopK = 2;
  using Row = std::vector<std::uint16_t>;  // bf16
  std::vector<Row> norms(kRanks, Row(kTokens * kHidden));
  on_rank_threads(kRanks, [&](Rank& rank) {
    FusedAllReduce all(rank, {.max_tokens = 64, .hidden = kHidden});
    // Each rank holds one expert: its row counts for the first choice of every token.
    const Row rows(kHidden, float_to_bf16(1.0f + float(rank.number())));
    const Row residual(kTokens * kHidden, float_to_bf16(0.5f)), gamma(kHidden, float_to_bf16(1));
    Row residual_out(kTokens * kHidden);
    std::vector<std::int32_t> index(kTokens * kTopK, -1);  // -1: a choice of another rank
    const std::vector<float> weights(index.size(), 0.5f);
    for (std::int64_t t = 0; t < kTokens; ++t) index[t * kTopK] = 0;

    allreduce_fusion(all,
                     ops::MoEFinalizeArgs{.shape = {.tokens = kTokens, .hidden = kHidden},
                                          .source = {.rows = rows.data(),
                                                     .num_rows = 1,
                                                     .expanded_idx_to_permuted_idx = index.data(),
                                                     .top_k = kTopK,
                                                     .expert_scale_factor = weights.data(),
                                                     .routed_scaling_factor = 2.5f},
                                          .norm = {.residual_in = residual.data(),
                                                   .rms_gamma = gamma.data(),
                                                   .residual_out = residual_out.data(),
                                                   .norm_out = norms[rank.number()].data()}});
    // 2.5 x 0.5 x (1 + 2 + 3 + 4) + 0.5
    if (rank.number() == 0) std::printf("residual %g\n", double(bf16_to_float(residual_out[0])));
  });
  bool same = true;
  for (const Row& n : norms) same = same && n == norms[0];
  std::printf("norm %g, the same bits on all ranks: %s\n", double(bf16_to_float(norms[0][0])),
              same ? "yes" : "no");
  return same ? 0 : 1;
}
