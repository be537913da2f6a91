// SPDX-License-Identifier: Apache-2.0
// The tactics of the tile kernels: which tiers serve a call, and which are worth a try.
#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/ops/grouped_ffn/ffn_work.h"
#include "switchyard/ops/grouped_ffn/routing_launch.h"
#include "switchyard/ops/grouped_ffn/tile_ffn.h"
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"

namespace switchyard::ops {
namespace {

/// Estimates are within this of the best one's for a tier that is tried.
constexpr double kNear = 1.5;

/// Whether the tier of `tile` tokens serves a GEMM with weights in `tiles`; a forward asks, so it
/// allocates nothing.
bool serves(const FfnCall& call, const TileLayout& tiles, std::int64_t tile) {
  const FfnShape& s = *call.shape;
  if (tile == kPrefillTile) {
    const bool bf16 = s.quant == formats::ActivationQuant::kNone && s.dtype == Dtype::kBf16 &&
                      tiles.factor_bytes() == 0;
    return (bf16 || multiplies_codes(s)) &&
           serves_prefill({.layout = tiles, .x = {.planes = 1}, .experts = s.experts});
  }
  if (tile == kWholeTile) return decodes_whole(tiles.code);
  return std::find(std::begin(kTokenTiles), std::end(kTokenTiles), tile) != std::end(kTokenTiles);
}

/// The tiers that serve it.
std::vector<std::int64_t> tiers_of(const FfnCall& call, const TileLayout& tiles) {
  std::vector<std::int64_t> out(std::begin(kTokenTiles), std::end(kTokenTiles));
  for (std::int64_t forced : {kWholeTile, kPrefillTile})
    if (serves(call, tiles, forced)) out.push_back(forced);
  return out;
}

/// Those whose estimate is near the best.
std::vector<std::int64_t> tried_tiers(const FfnCall& call, const TileLayout& tiles) {
  const FfnWork work(*call.shape, call.tokens);
  const GemmWork gemm{tiles.rows, tiles.cols,
                      double(formats::bits_of(call.shape->weights.element))};
  const auto estimate = [&](std::int64_t tile) {
    return estimated_us(work, gemm, tile == kWholeTile ? kTokenTiles[0] : tile);
  };
  double best = 0;
  std::vector<std::int64_t> out = tiers_of(call, tiles);
  for (std::int64_t tile : out) {
    const double us = estimate(tile);
    best = best == 0 ? us : std::min(best, us);
  }
  std::erase_if(out, [&](std::int64_t tile) { return estimate(tile) > kNear * best; });
  return out;
}

void check_tier(const FfnCall& call, const TileLayout& tiles, std::int64_t tile,
                const Tactic& tactic) {
  if (tile == 0 || serves(call, tiles, tile)) return;
  std::string list;
  for (std::int64_t served : tiers_of(call, tiles)) list += cat(served, ", ");
  throw UsageError(cat("tactic ", to_string(tactic), ": no tier of ", tile,
                       " tokens serves these operands; there are ", list,
                       "and 0 for the launch's own choice"));
}

}  // namespace

Tactic plan_tiles(const FfnCall&) { return TileTactic{}; }

std::vector<Tactic> tile_candidates(const FfnCall& call) {
  std::vector<Tactic> out = {plan_tiles(call)};
  if (call.tokens == 0) return out;
  for (std::int64_t fc1 : tried_tiers(call, fc1_tiles(*call.shape)))
    for (std::int64_t fc2 : tried_tiers(call, fc2_tiles(*call.shape)))
      out.push_back(TileTactic{fc1, fc2});
  // Where few tokens are routed in the launch that sorts; one expert alone needs no routing.
  if (call.shape->experts > 1 && call.tokens <= kMostJoinedTokens)
    out.push_back(TileTactic{0, 0, std::int64_t(TileRouting::kApart)});
  return out;
}

void check_tile_tactic(const FfnCall& call, const Tactic& tactic) {
  const auto* t = std::get_if<TileTactic>(&tactic);
  if (t == nullptr)
    throw UsageError(
        cat("tactic ", to_string(tactic), ": it is of a CPU's panels, and cuda runs tiles"));
  check_tier(call, fc1_tiles(*call.shape), t->fc1_tile, tactic);
  check_tier(call, fc2_tiles(*call.shape), t->fc2_tile, tactic);
  require(t->routing <= std::int64_t(TileRouting::kApart), "tactic ", to_string(tactic),
          ": there is no way ", t->routing, " to route; there are 0 (planned) to ",
          std::int64_t(TileRouting::kApart), " (apart)");
}

}  // namespace switchyard::ops
