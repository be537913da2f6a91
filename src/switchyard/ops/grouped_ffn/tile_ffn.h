// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/core/eligibility.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"
#include "switchyard/ops/grouped_gemm/tile.h"

/// The expert FFN of sm_90: weights in tiles, everything on the device.
namespace switchyard::ops {

/// FC1's packed matrix: the rows of gate and up in pairs, as many as FC2 has columns.
TileLayout fc1_tiles(const FfnShape& shape);
/// FC2's packed matrix.
TileLayout fc2_tiles(const FfnShape& shape);

/// Whether both GEMMs multiply E4M3 codes by E4M3 codes, and not values decoded to bf16.
bool multiplies_codes(const FfnShape& shape);

/// Experts whose columns TP ranks divide.
struct ShardedWeights {
  formats::WeightLayout layout;  // of the whole expert
  formats::ActivationQuant quant = formats::ActivationQuant::kNone;
  std::int64_t hidden = 0, inter = 0, tp = 1;
};
/// Whether every rank's shard has tiles. Blocks of fp32 scales must not be cut, but where one block
/// is the whole shard; those of 4-bit codes never are. Pure.
Eligibility can_tile_shards(const ShardedWeights& weights);

/// Geometry of one tile-packed expert: FC1 at up_codes, FC2 at down_codes, the factors of their
/// rows at up_scales and down_scales, biases unpadded.
///
/// Errors:  UsageError when no tiles hold such weights.
ExpertLayout tile_expert_layout(const FfnShape& shape);

/// Packs one canonical expert for upload; as pack_expert().
///
/// Errors:  UsageError when a matrix does not have the shape or the layout that `shape` says.
void pack_expert_tiles(const FfnShape& shape, const ExpertLayout& layout,
                       const checkpoint::ExpertWeights& expert, float fc2_input_scale,
                       std::span<std::byte> packed);

/// Bytes of device memory that a forward of up to `max_tokens` tokens needs; the team is not read.
std::size_t tile_workspace_bytes(const FfnShape& shape, const ExpertLayout& layout,
                                 std::int64_t max_tokens, const CpuTeam& team);

/// The CUDA twin, enqueued on args.stream; every pointer of the call is device memory, the shape
/// and the layout apart. Allocates nothing, waits for nothing: it can be captured into a graph. An
/// id outside the experts counts as -1, and every expert's does in an empty TP shard, whose rows
/// are then not written.
///
/// Errors:  UsageError for a broken argument; DeviceError when a launch fails or the build has no
///          CUDA.
void grouped_ffn_cuda(const FfnArgs& args);

/// The tactic of a call that nobody tunes: every tier as the launch chooses it.
Tactic plan_tiles(const FfnCall& call);
/// The plan's tactic, pairs of tiers whose estimated time is near the best one's, and for few
/// tokens the ways to route. Pure.
std::vector<Tactic> tile_candidates(const FfnCall& call);
/// Errors: UsageError, naming tactic and value, for a tier that does not serve such operands,
/// or a way to route that there is not.
void check_tile_tactic(const FfnCall& call, const Tactic& tactic);

/// The tile kernels, which serve every format; hidden states of bf16 and fp16.
inline constexpr ExpertFfn kTileFfnCuda{tile_expert_layout, pack_expert_tiles, tile_workspace_bytes,
                                        grouped_ffn_cuda,   plan_tiles,        tile_candidates,
                                        check_tile_tactic};

}  // namespace switchyard::ops
