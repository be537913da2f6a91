// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_ffn/expert_packer.h"

#include <algorithm>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/ops/grouped_ffn/expert_check.h"
#include "switchyard/ops/grouped_ffn/tile_ffn.h"
#include "switchyard/ops/grouped_gemm/pack_tiles.h"
#include "switchyard/ops/grouped_gemm/pack_tiles_cuda.h"

namespace switchyard::ops {
namespace {

/// Of one piece, where a row of tiles takes no more: long enough for a copy at full rate.
constexpr std::size_t kPieceBytes = std::size_t(8) << 20;

/// A matrix of the layer's shape without values.
StoredRows rows_of(const formats::WeightLayout& layout, std::int64_t rows, std::int64_t cols) {
  formats::Matrix m;
  m.layout = layout;
  m.rows = rows;
  m.cols = cols;
  return stored_rows(m);
}

TileSources fc1_sources(const FfnShape& s, const StoredRows& gate, const StoredRows& up) {
  TileSources out{.gate = s.gated ? gate : up, .up = {}, .paired = s.gated, .code = {}};
  if (s.gated) out.up = up;
  out.code = fc1_tiles(s).code;
  return out;
}

TileSources fc2_sources(const FfnShape& s, const StoredRows& down) {
  return {.gate = down, .up = {}, .paired = false, .code = fc2_tiles(s).code};
}

/// Floats and biases, which end an expert.
std::size_t tail_bytes(const ExpertLayout& l) { return l.bytes - l.floats; }

void put_bias(const std::vector<float>& bias, std::size_t at, std::byte* tail) {
  if (!bias.empty()) std::memcpy(tail + at, bias.data(), bias.size() * sizeof(float));
}

}  // namespace

PackerScratch PackerScratch::of(const FfnShape& s, const ExpertLayout& l) {
  const StoredRows inner = rows_of(s.fc1_weights(), s.inter, s.hidden);
  const TileSources fc1 = fc1_sources(s, inner, inner);
  const TileSources fc2 = fc2_sources(s, rows_of(s.fc2_weights(), s.hidden, s.inter));
  const std::int64_t all_fc1 = fc1_tiles(s).row_tiles(), all_fc2 = fc2_tiles(s).row_tiles();
  const std::size_t whole = std::max(piece_bytes(fc1, all_fc1), piece_bytes(fc2, all_fc2));
  PackerScratch out;
  out.staging = std::max(
      {std::min(kPieceBytes, whole), piece_bytes(fc1, 1), piece_bytes(fc2, 1), tail_bytes(l)});
  out.fc1_row_tiles = std::min(piece_row_tiles(fc1, out.staging), all_fc1);
  out.fc2_row_tiles = std::min(piece_row_tiles(fc2, out.staging), all_fc2);
  out.marks = std::size_t(std::max(out.fc1_row_tiles, out.fc2_row_tiles) * kTileRows) *
              sizeof(std::uint32_t);
  return out;
}

/// A packed matrix on the device.
struct ExpertPacker::Target {
  TileLayout layout;
  std::byte* packed;
  float* factors;          // null where the code has none
  std::int64_t row_tiles;  // of one piece
};

ExpertPacker::ExpertPacker(const FfnShape& shape, const ExpertLayout& layout)
    : shape_(shape),
      layout_(layout),
      scratch_(PackerScratch::of(shape, layout)),
      buffers_{DeviceStaging(scratch_.staging, scratch_.marks),
               DeviceStaging(scratch_.staging, scratch_.marks)} {}

ExpertPacker::~ExpertPacker() {
  try {
    stream_.wait();
  } catch (const DeviceError&) {  // NOLINT(bugprone-empty-catch): whoever waits for it is told
  }
}

void ExpertPacker::pack(const checkpoint::ExpertWeights& e, float fc2_input_scale,
                        std::byte* packed) {
  check_expert(shape_, e);
  const HomeGpu::Scope here(gpu_);
  // The parts leave gaps up to their boundaries, and biases may be absent.
  clear_on_device(packed, layout_.bytes, stream_.get());
  if (shape_.inter == 0) return;  // an empty TP shard: nothing of it is read
  write_tail(e, fc2_input_scale, packed);
  const auto target = [&](const TileLayout& l, std::size_t codes, std::size_t factors,
                          std::int64_t row_tiles) {
    float* at = reinterpret_cast<float*>(packed + factors);  // on a 64-byte boundary
    return Target{l, packed + codes, l.factor_bytes() > 0 ? at : nullptr, row_tiles};
  };
  const StoredRows gate = e.gate ? stored_rows(*e.gate) : StoredRows{};
  write_matrix(
      fc1_sources(shape_, gate, stored_rows(e.up)),
      target(fc1_tiles(shape_), layout_.up_codes, layout_.up_scales, scratch_.fc1_row_tiles));
  write_matrix(
      fc2_sources(shape_, stored_rows(e.down)),
      target(fc2_tiles(shape_), layout_.down_codes, layout_.down_scales, scratch_.fc2_row_tiles));
}

void ExpertPacker::write_tail(const checkpoint::ExpertWeights& e, float fc2_input_scale,
                              std::byte* packed) {
  DeviceStaging& buffer = next();
  std::byte* tail = buffer.claim();
  std::memset(tail, 0, tail_bytes(layout_));
  const float floats[4] = {1, 1, 1, fc2_input_scale};  // the alphas are in the rows' factors
  std::memcpy(tail, floats, sizeof(floats));
  if (shape_.gated) put_bias(e.gate_bias, layout_.gate_bias - layout_.floats, tail);
  put_bias(e.up_bias, layout_.up_bias - layout_.floats, tail);
  put_bias(e.down_bias, layout_.down_bias - layout_.floats, tail);
  buffer.send_to(packed + layout_.floats, 0, tail_bytes(layout_), stream_.get());
  buffer.release(stream_.get());
}

void ExpertPacker::write_matrix(const TileSources& sources, const Target& to) {
  const std::int64_t all = to.layout.row_tiles();
  for (std::int64_t first = 0; first < all; first += to.row_tiles) {
    const TileRange range{first, std::min(to.row_tiles, all - first)};
    DeviceStaging& buffer = next();
    const StagedPiece piece = stage_piece(sources, range, buffer.claim(), buffer.device());
    buffer.send(piece.bytes, stream_.get());
    pack_tiles_cuda({.sources = piece.sources,
                     .layout = to.layout,
                     .row_tile = range.first,
                     .row_tiles = range.count,
                     .packed = to.packed,
                     .factors = to.factors,
                     .marks = reinterpret_cast<std::uint32_t*>(buffer.device() + scratch_.staging)},
                    stream_.get());
    buffer.release(stream_.get());
  }
}

}  // namespace switchyard::ops
