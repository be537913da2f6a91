// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/grouped_gemm_prefill_sm90.h"

/// Sums of the prefill tier by way of shared memory. For .cu files only.
namespace switchyard::ops::sm90::prefill {

/// Sixteen tokens of a warp's 16 weight rows, for ends that are loops and not one copy of their
/// code per register.
struct Board {
  static constexpr int kTokens = 16, kRows = 16;  ///< At a time.
  static constexpr int kStride = kRows + 4;       ///< Floats; + 4: no bank meets twice.
  float sums[kTokens * kStride];

  /// Four rows of weights of one token.
  __device__ float4 four(int token, int row) const {
    return *reinterpret_cast<const float4*>(sums + token * kStride + row);
  }
  /// Replaces them.
  __device__ void put(int token, int row, const float4& v) {
    *reinterpret_cast<float4*>(sums + token * kStride + row) = v;
  }
};

/// Calls `visit(register, place on the board)` for chunk `at` of the sums.
template <int size, class Visit>
__device__ void for_chunk(int at, Visit&& visit) {
  constexpr int kPerChunk = Board::kTokens / 2;
  const int row = Sums::lane() / 4, column = Sums::lane() % 4 * 2;
#pragma unroll
  for (int chunk = 0; chunk < size / kPerChunk; ++chunk) {
    if (chunk != at) continue;  // the registers' numbers have to be constants
#pragma unroll
    for (int i = 0; i < kPerChunk; ++i)
      visit(chunk * kPerChunk + i,
            (i / 4 * 8 + column + i % 2) * Board::kStride + row + i / 2 % 2 * 8);
  }
}

/// Lays chunk `at` of the sums out on the warp's board.
template <int size>
__device__ void lay_out(const float (&acc)[size], int at, Board& board) {
  for_chunk<size>(at, [&](int i, int place) { board.sums[place] = acc[i]; });
}

/// Takes it back.
template <int size>
__device__ void take_back(float (&acc)[size], int at, const Board& board) {
  for_chunk<size>(at, [&](int i, int place) { acc[i] = board.sums[place]; });
}

/// Shows the sums to `visit(token, token on the board)`, by way of the warp's board: a lane gets a
/// token of each 16 and one half of its rows. With `back`, what it leaves there becomes the sums.
template <bool back, int size, class Sum, class Visit>
__device__ void visit_tokens(Sum (&acc)[size], int tokens, Board& board, Visit&& visit) {
#pragma unroll 1
  for (int at = 0; at * Board::kTokens < tokens; ++at) {
    lay_out(acc, at, board);
    __syncwarp();
    const int token = Sums::lane() / 2;
    if (at * Board::kTokens + token < tokens) visit(at * Board::kTokens + token, token);
    __syncwarp();
    if constexpr (back) {
      take_back(acc, at, board);
      __syncwarp();
    }
  }
}

/// The same without a way back.
template <int size, class Visit>
__device__ void for_each_token(const float (&acc)[size], int tokens, Board& board, Visit&& visit) {
  visit_tokens<false>(acc, tokens, board, visit);
}

}  // namespace switchyard::ops::sm90::prefill
