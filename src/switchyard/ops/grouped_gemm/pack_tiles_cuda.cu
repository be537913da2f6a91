// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/cuda_check.h"
#include "switchyard/ops/grouped_gemm/pack_tiles_cuda.h"

namespace switchyard::ops {
namespace {

constexpr unsigned kThreads = 256, kLanes = 32, kRowsPerBlock = kThreads / kLanes;

/// A warp per packed row: what its units need of the whole row, and its factor.
__global__ void __launch_bounds__(kThreads) mark_rows_kernel(const __grid_constant__ TilePiece p) {
  const std::int64_t local = std::int64_t(blockIdx.x) * kRowsPerBlock + threadIdx.x / kLanes;
  const std::int64_t row = p.row_tile * kTileRows + local;
  const SourceRow from = source_row(p.sources, row);
  const std::uint32_t part = row_mark(from, p.sources.code, threadIdx.x % kLanes, kLanes);
  const std::uint32_t mark = __reduce_max_sync(0xffffffffu, part);
  if (threadIdx.x % kLanes != 0) return;
  p.marks[local] = mark;
  if (p.factors != nullptr) p.factors[row] = row_factor(from, p.sources.code, mark);
}

/// A block per tile, a thread per 16 bytes of it.
__global__ void __launch_bounds__(kThreads) pack_tiles_kernel(const __grid_constant__ TilePiece p) {
  const TileCode code = p.sources.code;
  UnitPlace at{p.row_tile + blockIdx.y, blockIdx.x, threadIdx.x};
  const std::int64_t tile = at.row_tile * gridDim.x + at.col_tile;
  std::byte* out = p.packed + tile * tile_bytes(code);
  const std::uint32_t* marks = p.marks + std::int64_t(blockIdx.y) * kTileRows;  // (64)
  for (; at.unit < tile_units(code); at.unit += kThreads)
    *reinterpret_cast<TileUnit*>(out + at.unit * kUnitBytes) = tile_unit(p.sources, at, marks);
  if (code != TileCode::kE4m3Operand || threadIdx.x >= 2) return;
  auto* scales = reinterpret_cast<float*>(p.packed + p.layout.scales_at());  // (row_tiles, cols, 2)
  scales[tile * 2 + threadIdx.x] = operand_scale(p.sources, at, int(threadIdx.x));
}

}  // namespace

void pack_tiles_cuda(const TilePiece& p, Stream stream) {
  if (p.row_tiles == 0) return;  // CUDA refuses a grid of 0 blocks
  const auto cuda_stream = static_cast<cudaStream_t>(stream.handle);
  const auto row_blocks = unsigned(p.row_tiles * kTileRows / kRowsPerBlock);
  mark_rows_kernel<<<row_blocks, kThreads, 0, cuda_stream>>>(p);
  cuda_check(cudaGetLastError(), "pack_tiles: launch of the rows");
  const dim3 tiles(unsigned(p.layout.col_tiles()), unsigned(p.row_tiles));
  if (tiles.x == 0) return;
  pack_tiles_kernel<<<tiles, kThreads, 0, cuda_stream>>>(p);
  cuda_check(cudaGetLastError(), "pack_tiles: launch of the tiles");
}

}  // namespace switchyard::ops
