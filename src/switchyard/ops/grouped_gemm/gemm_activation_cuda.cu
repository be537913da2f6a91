// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/dtype.h"
#include "switchyard/ops/activation/activation_math.h"
#include "switchyard/ops/grouped_gemm/gemm_launch_sm90.h"

namespace switchyard::ops {
namespace {

/// Any kind, out of line: one copy for all the elements of a tile.
__device__ __noinline__ float activate_any(const ActivationParams& p, float gate, float up) {
  return activate(p, gate, up);
}

__device__ float activate_one(const ActivationParams& p, bool plain, float gate, float up) {
  return plain ? SwigluFormula::eval(p, gate, up) : activate_any(p, gate, up);
}

/// Four neighbouring columns of a token.
struct Quad {
  float v[4];
};

__device__ Quad load_sums(const sm90::Board& board, int token, int row) {
  const float4 a = board.four(token, row);
  return {a.x, a.y, a.z, a.w};
}

__device__ void add_bias(Quad& sums, const std::byte* bias, std::int64_t offset, int col,
                         int inter) {
  if (!bias) return;
  const float* b = reinterpret_cast<const float*>(bias + offset) + col;
  for (int i = 0; i < 4; ++i)
    if (col + i < inter) sums.v[i] += b[i];
}

/// Stores four columns of a row as bf16; those past `inter` as 0.
__device__ void write_quad(const ActivationEnd& end, std::int64_t row, int col, const Quad& y) {
  std::uint32_t bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) bits[i] = col + i < end.inter ? float_to_bf16(y.v[i]) : 0;
  *reinterpret_cast<uint2*>(end.out.at(row, col / 8) + col % 8 * 2) =
      make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
}

/// Two projections: eight rows of gate, then the same of up.
struct StoreGated {
  ActivationEnd end;

  __device__ void store(const sm90::Board& board, const sm90::Part& part) const {
    constexpr int kQuads = int(kTileRows) / 8;
    const int thread = threadIdx.x % 128, quad = thread % kQuads;
    const int row = quad / 2 * 16 + quad % 2 * 4;  // of the gate; up's is 8 further
    const int col = part.row_tile * int(kTileRows) / 2 + quad * 4;
    const std::int64_t biases = part.tile.expert * end.bias_stride;
    const ActivationParams p = end.params[part.tile.expert];
    const bool plain = p.type == ActivationType::kSwiglu && !p.limit_after;
    for (int token = thread / kQuads; token < part.tokens(); token += 128 / kQuads) {
      Quad gate = load_sums(board, token, row), up = load_sums(board, token, row + 8);
      add_bias(gate, end.gate_bias, biases, col, int(end.inter));
      add_bias(up, end.up_bias, biases, col, int(end.inter));
#pragma unroll
      for (int i = 0; i < 4; ++i) gate.v[i] = activate_one(p, plain, gate.v[i], up.v[i]);
      write_quad(end, part.row(token), col, gate);
    }
  }
};

/// One projection.
struct StoreSingle {
  ActivationEnd end;

  __device__ void store(const sm90::Board& board, const sm90::Part& part) const {
    constexpr int kQuads = int(kTileRows) / 4;
    const int thread = threadIdx.x % 128, quad = thread % kQuads;
    const int col = part.row_tile * int(kTileRows) + quad * 4;
    const std::int64_t biases = part.tile.expert * end.bias_stride;
    const ActivationParams p = end.params[part.tile.expert];
    for (int token = thread / kQuads; token < part.tokens(); token += 128 / kQuads) {
      Quad x = load_sums(board, token, quad * 4);
      add_bias(x, end.up_bias, biases, col, int(end.inter));
#pragma unroll
      for (int i = 0; i < 4; ++i) x.v[i] = activate_any(p, 0, x.v[i]);
      write_quad(end, part.row(token), col, x);
    }
  }
};

}  // namespace

void gemm_activation_cuda(const DeviceGemm& gemm, const ActivationEnd& end, Stream stream,
                          std::int64_t tile) {
  const char* what = "grouped GEMM of FC1: launch";
  if (end.gated) return sm90::launch_gemm(what, gemm, StoreGated{end}, stream, tile);
  sm90::launch_gemm(what, gemm, StoreSingle{end}, stream, tile);
}

}  // namespace switchyard::ops
