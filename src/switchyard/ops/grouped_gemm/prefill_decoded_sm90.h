// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/gemm_ends_sm90.h"
#include "switchyard/ops/grouped_gemm/prefill_sums_sm90.h"

/// The prefill tier of 4-bit weights. For .cu files only.
///
/// Where each multiplying warpgroup decodes its own weights, every weight is decoded once per 128
/// tokens and between two multiplications. Here a warpgroup of its own decodes them, once per tile
/// of up to 256 tokens, into shared memory where bf16 weights would lie; what multiplies is the
/// code of bf16. The ends are those of the smaller tiers, which know scales and quantisers.
namespace switchyard::ops::sm90::prefill {

/// Codes in a ring of their own, which are on their way while decoded stages still wait; bf16 from
/// shared memory, both sides.
struct DecodedOperands {
  static constexpr int kMostTokens = int(kPrefillTile);  ///< Of one tile.
  static constexpr int kMostTokensTwice = 128;           ///< With two weight tiles a warpgroup.
  static constexpr int kGrain = 16;                      ///< In which tokens are cut.
  static constexpr int kStages = 3;                      ///< Of the ring of decoded ones.
  static constexpr int kFullArrivals = 1 + 4;            ///< Who fetches, and each decoding warp.
  static constexpr int kFeedRegisters = 88;              ///< Of a decoding thread.
  static constexpr int kTiles = 2 * kConsumers;          ///< Of a stage's weights, at most.
  static constexpr int kPackedStages = 6;                ///< Of the ring of codes.
  /// Of one stage's codes.
  static constexpr int kPackedBytes = kTiles * int(tile_bytes(TileCode::kNvfp4));
  static_assert(tile_bytes(TileCode::kMxfp4) <= tile_bytes(TileCode::kNvfp4) &&
                tile_bytes(TileCode::kNvfp4Wide) <= tile_bytes(TileCode::kNvfp4));
  /// Codes, and what ends use.
  struct Scratch {
    alignas(16) std::byte packed[kPackedStages][kPackedBytes];
    std::uint64_t packed_full[kPackedStages], packed_empty[kPackedStages];
    std::int32_t packed_tiles[kPackedStages];  ///< 0: the end.
    Desk desks[kConsumers][2];                 ///< Of a warpgroup's row tiles.
  };
  /// The barriers of the codes.
  __device__ static void init(Scratch& scratch) {
    for (int i = 0; i < kPackedStages; ++i) {
      barrier_init(&scratch.packed_full[i], 1);
      barrier_init(&scratch.packed_empty[i], 4);
    }
  }
  /// What fetches, by the first of the feeding warps, and decodes, by all of them,
  __device__ static void feed(const DeviceGemm& g, std::byte* stages, Shared<DecodedOperands>& s,
                              int warp);
  /// and what multiplies.
  template <class End>
  using Consumer = SumsConsumer<DecodedOperands, End>;

  /// Asks for what the end of a row tile reads of memory.
  template <class End>
  __device__ static void ask(const End& end, Scratch& scratch, const Sums& sums, int t) {
    end.fetch(scratch.desks[threadIdx.x / 128][t].operands, sums.expert, sums.row_tile);
  }
  /// Hands a tile's sums to the end, a board of tokens at a time.
  template <int size, class End>
  __device__ __forceinline__ static void store(const float (&acc)[size], const End& end,
                                               Scratch& scratch, const Sums& sums, int t) {
    const Tile tile{.expert = sums.expert,
                    .row_tile = sums.row_tile,
                    .first = sums.first,
                    .tokens = sums.tokens};
    store_all<2 * size>(acc, tile, sums.row_tile, scratch.desks[threadIdx.x / 128][t], end);
  }
};

/// Fetches codes, ahead of the stages that they are decoded into: they stand since the layer was
/// built, and wait for no launch.
class CodeFetcher {
 public:
  /// Of one block.
  __device__ CodeFetcher(const DeviceGemm& g, Shared<DecodedOperands>& s)
      : g_(g), s_(s), lane_(threadIdx.x % 32), bytes_(int(tile_bytes(g.layout.code))), walk_(g, s) {
    begin();
  }

  /// Those of the next stage, as soon as their place is free; behind the last one, the end.
  __device__ void bring() {
    DecodedOperands::Scratch& c = s_.scratch;
    if (ended_) return;
    barrier_wait_bounded(&c.packed_empty[ring_.stage], ring_.phase ^ 1);
    std::uint64_t* full = &c.packed_full[ring_.stage];
    if (lane_ == 0) {
      c.packed_tiles[ring_.stage] = tiles_;
      barrier_expect(full, std::uint32_t(tiles_ * bytes_));
    }
    __syncwarp();
    if (lane_ < tiles_)
      copy_bulk(c.packed[ring_.stage] + lane_ * bytes_, from_, std::uint32_t(bytes_), full);
    from_ += bytes_;
    ring_.advance();
    ended_ = tiles_ == 0;
    if (--left_ == 0) begin();
  }

 private:
  /// Of a tile.
  __device__ void begin() {
    Work w;
    tiles_ = 0;
    if (!walk_.next(w)) return;
    left_ = int(g_.layout.col_tiles());
    tiles_ = kConsumers * w.tiles;
    // Tiles past the last row of weights read the last one again and drop its sums.
    const int row_tile = min(w.row_tile + lane_, int(g_.layout.row_tiles()) - 1);
    from_ = g_.weights + w.expert * g_.expert_stride + row_tile * (std::int64_t(left_) * bytes_);
  }

  const DeviceGemm& g_;
  Shared<DecodedOperands>& s_;
  int lane_;
  int bytes_;
  TileWalk<DecodedOperands> walk_;
  const std::byte* from_ = nullptr;
  int tiles_ = 0, left_ = 0;
  bool ended_ = false;
  Ring<DecodedOperands::kPackedStages> ring_;
};

/// Stores four matrices of 8 x 8 halves; `at` is the place of a row of one: lane l gives row l % 8
/// of matrix l / 8.
__device__ inline void store_matrices(std::uint32_t at, const std::uint32_t (&a)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
               "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
               : "memory");
}

/// A warp of those that decode: 16 rows of each tile of weights.
template <class Code>
class Decoder {
 public:
  /// Of one block.
  __device__ Decoder(std::byte* stages, Shared<DecodedOperands>& s) : stages_(stages), s_(s) {
    // Registers of a step hold rows 0 and 8 of the warp's 16, then the same 8 columns further.
    const int lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
    row_at_ = (threadIdx.x % 128 / 32 * 16 + matrix % 2 * 8 + row) * int(kTileRowBytes);
    group_ = ((matrix / 2) ^ row) * 16;
  }

  /// Decodes the next stage; false: there is no more.
  __device__ bool step() {
    DecodedOperands::Scratch& c = s_.scratch;
    barrier_wait_bounded(&c.packed_full[packed_.stage], packed_.phase);
    const int tiles = c.packed_tiles[packed_.stage];
    barrier_wait_bounded(&s_.empty[ring_.stage], ring_.phase ^ 1);
    const std::byte* from = c.packed[packed_.stage];
    const std::uint32_t to = shared_address(stages_ + ring_.stage * kStageBytes<DecodedOperands>);
    for (int t = 0; t < tiles; t += 2) {
      const typename Code::Raw first = Code::load(from + t * Code::kBytes);
      const typename Code::Raw second = Code::load(from + (t + 1) * Code::kBytes);
      decode(first, to + t * int(kTileBytes));
      decode(second, to + (t + 1) * int(kTileBytes));
    }
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      barrier_arrive(&c.packed_empty[packed_.stage]);
      barrier_arrive(&s_.full[ring_.stage]);  // behind the last one too: its end has no sums
    }
    packed_.advance(), ring_.advance();
    return tiles > 0;
  }

 private:
  __device__ void decode(const typename Code::Raw& raw, std::uint32_t tile) const {
    std::uint32_t a[2][4];
    Code::template decode<0>(raw, a);
    store(tile, 0, a);
    Code::template decode<1>(raw, a);
    store(tile, 2, a);
  }
  /// Two steps of 16 columns; groups of 8 lie swizzled by their row.
  __device__ void store(std::uint32_t tile, int step, const std::uint32_t (&a)[2][4]) const {
    store_matrices(tile + row_at_ + ((step * 32) ^ group_), a[0]);
    store_matrices(tile + row_at_ + ((step * 32 + 32) ^ group_), a[1]);
  }

  std::byte* stages_;
  Shared<DecodedOperands>& s_;
  std::uint32_t row_at_, group_;
  Ring<DecodedOperands::kPackedStages> packed_;
  Ring<DecodedOperands::kStages> ring_;
};

/// The first of the feeding warps: it fetches tokens, this block's half for both, and codes, and
/// decodes its part.
template <class Code>
class DecodedProducer : ProducerBase<DecodedOperands> {
 public:
  /// Of one block.
  __device__ DecodedProducer(const DeviceGemm& g, std::byte* stages, Shared<DecodedOperands>& s)
      : ProducerBase(g, stages, s), codes_(g, s), decoder_(stages, s) {}

  /// Feeds every tile of the pair, then says the end.
  __device__ void run() {
    // One place is left: that of the stage before, which other warps may still decode.
    for (int i = 0; i < DecodedOperands::kPackedStages - 1; ++i) codes_.bring();
    wait_for_previous_launch();
    each_tile([&](const Work& w) { feed(w); });
    end();
    decoder_.step();
  }

 private:
  __device__ void feed(const Work& w) {
    const int col_tiles = int(g_.layout.col_tiles());
    const Half half = half_of(w);
    const std::byte* x = g_.x.data + (w.first + half.begin) * kTileRowBytes;
    for (int k = 0; k < col_tiles; ++k, ring_.advance()) {
      wait_for_stage();
      if (threadIdx.x % 32 == 0) {
        std::uint64_t* full = &s_.full[ring_.stage];
        if (k == 0) s_.work[ring_.stage] = w;
        barrier_expect(full, padded(w) * std::uint32_t(kTileRowBytes));
        if (half.count > 0)
          copy_bulk_to_pair(stage() + weight_bytes(w.tiles) + half.begin * kTileRowBytes, x,
                            half.count * std::uint32_t(kTileRowBytes), full);
      }
      x += g_.x.capacity * kTileRowBytes;
      decoder_.step();
      codes_.bring();
    }
  }

  CodeFetcher codes_;
  Decoder<Code> decoder_;
};

/// What a feeding warp does.
template <class Code>
__device__ void feed_decoded(const DeviceGemm& g, std::byte* stages, Shared<DecodedOperands>& s,
                             int warp) {
  if (warp == 0) return DecodedProducer<Code>(g, stages, s).run();
  Decoder<Code> decoder(stages, s);
  while (decoder.step()) {
  }
}

/// By each of the feeding warps.
__device__ inline void DecodedOperands::feed(const DeviceGemm& g, std::byte* stages,
                                             Shared<DecodedOperands>& s, int warp) {
  switch (g.layout.code) {
    case TileCode::kMxfp4:
      return feed_decoded<Mxfp4Tiles>(g, stages, s, warp);
    case TileCode::kNvfp4:
      return feed_decoded<Nvfp4Tiles>(g, stages, s, warp);
    default:
      return feed_decoded<Nvfp4WideTiles>(g, stages, s, warp);
  }
}

}  // namespace switchyard::ops::sm90::prefill
