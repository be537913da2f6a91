// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>

#include "switchyard/base/check.h"
#include "switchyard/base/cuda_launch.h"
#include "switchyard/ops/grouped_gemm/grouped_gemm_sm90.h"

/// Launches the tier that a call asks for. For .cu files only.
namespace switchyard::ops::sm90 {

/// One tier.
template <class Tier, class End>
void launch_tier(const char* what, const DeviceGemm& g, const End& end, Stream stream) {
  const std::int64_t row_blocks = (g.layout.row_tiles() + Tier::kRowTiles - 1) / Tier::kRowTiles;
  const std::int64_t tiles =
      row_blocks * (std::min(g.experts, g.max_rows) + g.max_rows / Tier::kTokens);
  launch_overlapped(
      what, grouped_gemm_kernel<Tier, End>,
      {.blocks = unsigned(std::min<std::int64_t>(tiles, Tier::kBlocks * kMultiprocessors)),
       .threads = Tier::kThreads,
       .shared_bytes = Tier::kDynamicBytes},
      stream, g, end);
}

/// The tier with two blocks per multiprocessor, or with one where the experts are too many for it.
template <class Code, int row_tiles, int tokens, class End>
void launch_shared_tier(const char* what, const DeviceGemm& g, const End& end, Stream stream) {
  using Two = Tier<Code, row_tiles, tokens, 2>;
  if (g.experts <= Two::kExperts) return launch_tier<Two>(what, g, end, stream);
  launch_tier<Tier<Code, row_tiles, tokens>>(what, g, end, stream);
}

/// The tiers of weights that shared memory holds as they are multiplied.
template <class Code, class End>
void launch_plain(const char* what, const DeviceGemm& g, const End& end, Stream stream,
                  std::int64_t tile) {
  switch (tile) {
    case 8:
      return launch_shared_tier<Code, 1, 8>(what, g, end, stream);
    case 48:
      return launch_shared_tier<Code, 1, 48>(what, g, end, stream);
    case 16:
    case 32:
    case 64:
      return g.max_tokens <= 64 ? launch_tier<Tier<Code, 1, 64>>(what, g, end, stream)
                                : launch_tier<Tier<Code, 2, 64>>(what, g, end, stream);
    default:
      return launch_shared_tier<Code, 2, 128>(what, g, end, stream);
  }
}

/// The tiers of weights whose sums join those of other columns: they take twice the registers.
template <class Code, class End>
void launch_joined(const char* what, const DeviceGemm& g, const End& end, Stream stream,
                   std::int64_t tile) {
  switch (tile) {
    case 8:
      return launch_shared_tier<Code, 1, 8>(what, g, end, stream);
    case 16:
    case 32:
      return launch_shared_tier<Code, 1, 32>(what, g, end, stream);
    case 48:
      return launch_shared_tier<Code, 1, 48>(what, g, end, stream);
    case 64:
      return launch_tier<Tier<Code, 2, 64>>(what, g, end, stream);
    default:
      return launch_tier<Tier<Code, 2, 128>>(what, g, end, stream);
  }
}

/// The tiers of weights that are decoded in registers: four warpgroups a multiprocessor, so that
/// one decodes while others wait, as far as 96 registers a thread hold the sums.
template <class Code, class End>
void launch_decoded(const char* what, const DeviceGemm& g, const End& end, Stream stream,
                    std::int64_t tile) {
  switch (tile) {
    case kWholeTile:
      return launch_tier<Tier<Code, 1, 8, 4, true>>(what, g, end, stream);
    case 8:
      return launch_tier<Tier<Code, 1, 8, 4>>(what, g, end, stream);
    case 16:
      return launch_tier<Tier<Code, 2, 16, 2>>(what, g, end, stream);
    case 32:
      return launch_tier<Tier<Code, 2, 32, 2>>(what, g, end, stream);
    case 48:
    case 64:  // 48 at a time
      return launch_tier<Tier<Code, 2, 48, 2>>(what, g, end, stream);
    default:
      return launch_tier<Tier<Code, 2, 128>>(what, g, end, stream);
  }
}

/// The same where sums of 128 columns join the others and take registers of their own.
template <class Code, class End>
void launch_decoded_blocks(const char* what, const DeviceGemm& g, const End& end, Stream stream,
                           std::int64_t tile) {
  switch (tile) {
    case 8:
      return launch_tier<Tier<Code, 1, 8, 4>>(what, g, end, stream);
    case 16:
    case 32:
      return launch_tier<Tier<Code, 1, 32, 2>>(what, g, end, stream);
    case 48:
    case 64:
      return launch_tier<Tier<Code, 2, 64>>(what, g, end, stream);
    default:
      return launch_tier<Tier<Code, 2, 128>>(what, g, end, stream);
  }
}

/// The tier of `tile` tokens; 0 chooses by the call's sizes.
template <class Code, class End>
void launch_gemm(const char* what, const DeviceGemm& g, const End& end, Stream stream,
                 std::int64_t tile) {
  constexpr int kMost = Tier<Code, 1, 8>::kExperts;
  ensure(g.experts <= kMost, what, ": ", g.experts, " experts, the limit is ", kMost);
  if (g.max_rows == 0) return;
  if (tile == 0) tile = token_tile(g.max_tokens, g.max_rows, g.experts);
  ensure(std::find(std::begin(kTokenTiles), std::end(kTokenTiles), tile) != std::end(kTokenTiles) ||
             (tile == kWholeTile && decodes_whole(Code::kCode)),
         what, ": no tier of ", tile, " tokens");
  if constexpr (Code::kDecoded && Code::kBlockSums) {
    launch_decoded_blocks<Code>(what, g, end, stream, tile);
  } else if constexpr (Code::kDecoded) {
    launch_decoded<Code>(what, g, end, stream, tile);
  } else if constexpr (Code::kBlockSums) {
    launch_joined<Code>(what, g, end, stream, tile);
  } else {
    launch_plain<Code>(what, g, end, stream, tile);
  }
}

}  // namespace switchyard::ops::sm90
