// SPDX-License-Identifier: Apache-2.0
// Experts packed on the device against those packed on the host, bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>

#include "switchyard/formats/slice.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/ops/grouped_ffn/expert_packer.h"
#include "switchyard/ops/grouped_ffn/tile_ffn.h"
#include "tests/cases/moe_case.h"
#include "tests/support/device.h"
#include "tests/support/usage_error.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;
using formats::Element;
using formats::Matrix;

class ExpertPackerCuda : public test::NeedsGpu {};

constexpr std::size_t kCanary = 256;
constexpr std::byte kPoison{0xa7};

/// A matrix with NaNs where its codes have them, and with every scale code of one byte.
Matrix hard_matrix(const formats::WeightLayout& layout, std::int64_t rows, std::int64_t cols,
                   std::uint64_t seed) {
  struct Owned {
    std::vector<std::byte> codes, scales;
  };
  Matrix m = test::make_matrix(layout, rows, cols, seed);
  auto owned = std::make_shared<Owned>();
  owned->codes.assign(m.codes.begin(), m.codes.end());
  owned->scales.assign(m.scales.begin(), m.scales.end());
  if (layout.element == Element::kE4m3)
    for (std::size_t i = 5; i < owned->codes.size(); i += 7 * std::size_t(cols) + 3)
      owned->codes[i] = i % 2 == 0 ? std::byte(0x7f) : std::byte(0xff);
  if (bytes_of(layout.scale) == 1)
    for (std::size_t i = 0; i < owned->scales.size(); ++i)
      owned->scales[i] = std::byte(layout.scale == formats::ScaleType::kE8m0 ? i % 255 : i % 127);
  m.codes = owned->codes;
  m.scales = owned->scales;
  m.storage = owned;
  if (layout.global_scale) m.global_scale = seed % 2 == 0 ? 0x1.8p-140f : 0.37f;
  return m;
}

std::vector<float> bias_of(std::int64_t size, float first) {
  std::vector<float> out(std::size_t(size), first);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] += float(i) * 0.25f;
  return out;
}

checkpoint::ExpertWeights expert_of(const FfnShape& s, std::uint64_t seed) {
  checkpoint::ExpertWeights e;
  if (s.gated) e.gate = hard_matrix(s.weights, s.inter, s.hidden, seed);
  e.up = hard_matrix(s.weights, s.inter, s.hidden, seed + 1);
  e.down = hard_matrix(s.weights, s.hidden, s.inter, seed + 2);
  if (!s.bias) return e;
  if (s.gated) e.gate_bias = bias_of(s.inter, 1);
  e.up_bias = bias_of(s.inter, 2);
  e.down_bias = bias_of(s.hidden, 3);
  return e;
}

std::vector<std::byte> packed_by_host(const FfnShape& s, const checkpoint::ExpertWeights& e) {
  const ExpertLayout l = tile_expert_layout(s);
  std::vector<std::byte> out(l.bytes);
  pack_expert_tiles(s, l, e, 0.5f, out);
  return out;
}

/// What stands behind the expert too, and the expert in front, are poison that nobody touches.
void expect_same(const FfnShape& s, ExpertPacker& packer, const checkpoint::ExpertWeights& e) {
  const std::vector<std::byte> expected = packed_by_host(s, e);
  const test::OnDevice<std::byte> memory(
      std::vector<std::byte>(2 * kCanary + expected.size(), kPoison));
  packer.pack(e, 0.5f, memory.data() + kCanary);
  packer.wait();
  const std::vector<std::byte> got = memory.get();
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(got[kCanary + i], expected[i]) << "byte " << i << " of " << expected.size();
  for (std::size_t i = 0; i < kCanary; ++i) {
    ASSERT_EQ(got[i], kPoison);
    ASSERT_EQ(got[kCanary + expected.size() + i], kPoison);
  }
}

std::vector<FfnShape> shapes_of(const leaves::Leaf& leaf) {
  std::vector<FfnShape> out;
  const bool four_bit = formats::bits_of(leaf.weights.element) == 4;
  for (const auto& [hidden, inter] :
       {std::pair{128, 96}, {130, 98}, {2, 2}, {131, 97}, {400, 176}, {64, 1408}})
    for (bool gated : {true, false})
      for (bool bias : {true, false})
        for (ActivationQuant quant : {leaf.activation, ActivationQuant::kNone}) {
          if (four_bit && (hidden % 2 != 0 || inter % 2 != 0)) continue;
          out.push_back({.hidden = hidden,
                         .inter = inter,
                         .experts = 1,
                         .top_k = 1,
                         .gated = gated,
                         .bias = bias,
                         .weights = leaf.weights,
                         .quant = quant});
        }
  return out;
}

/// Every leaf that has tiles.
std::vector<const leaves::Leaf*> tiled() { return leaves::all_leaves(Device::kCuda); }

TEST_F(ExpertPackerCuda, TheBytesAreTheHosts) {
  for (const leaves::Leaf* leaf : tiled())
    for (const FfnShape& s : shapes_of(*leaf)) {
      SCOPED_TRACE(leaf->id.str() + " " + std::to_string(s.hidden) + " x " +
                   std::to_string(s.inter) + (s.gated ? " gated" : "") + (s.bias ? " biases" : ""));
      ExpertPacker packer(s, tile_expert_layout(s));
      for (std::uint64_t seed : {3, 10}) expect_same(s, packer, expert_of(s, seed));
      if (HasFatalFailure()) return;
    }
}

// Several pieces a matrix, the last one short, through two buffers; ragged in both widths.
TEST_F(ExpertPackerCuda, ManyPiecesGiveTheHostsBytes) {
  for (const leaves::Leaf* leaf : tiled()) {
    SCOPED_TRACE(leaf->id.str());
    const FfnShape s{.hidden = 4130,
                     .inter = 5058,
                     .experts = 1,
                     .top_k = 1,
                     .weights = leaf->weights,
                     .quant = leaf->activation};
    const ExpertLayout l = tile_expert_layout(s);
    const auto scratch = PackerScratch::of(s, l);
    ASSERT_LT(2 * scratch.fc1_row_tiles, fc1_tiles(s).row_tiles()) << "more than two pieces";
    ExpertPacker packer(s, l);
    expect_same(s, packer, expert_of(s, 3));
    if (HasFatalFailure()) return;
  }
}

// Columns [begin, begin + size) of an expert, as TP ranks hold them, where they have tiles.
TEST_F(ExpertPackerCuda, ShardsGiveTheHostsBytes) {
  for (const leaves::Leaf* leaf : tiled()) {
    const FfnShape whole{.hidden = 400,
                         .inter = 352,
                         .experts = 1,
                         .top_k = 1,
                         .weights = leaf->weights,
                         .quant = leaf->activation};
    const checkpoint::ExpertWeights all = expert_of(whole, 3);
    int packed = 0;
    for (const auto& [begin, size] : {std::pair<std::int64_t, std::int64_t>{0, 128},
                                      {128, 128},
                                      {256, 96},
                                      {160, 32},
                                      {352, 0}}) {
      FfnShape s = whole;
      s.inter_begin = begin;
      s.inter = size;
      if (size > 0 && !(has_tiles(s.fc1_weights(), s.hidden, s.quant) &&
                        has_tiles(s.fc2_weights(), s.inter, s.quant)))
        continue;
      SCOPED_TRACE(leaf->id.str() + " from " + std::to_string(begin));
      checkpoint::ExpertWeights e;
      e.gate = formats::slice_rows(*all.gate, begin, size);
      e.up = formats::slice_rows(all.up, begin, size);
      e.down = formats::slice_cols(all.down, begin, size);
      ExpertPacker packer(s, tile_expert_layout(s));
      expect_same(s, packer, e);
      if (HasFatalFailure()) return;
      ++packed;
    }
    EXPECT_GE(packed, 4);
  }
}

// As a bank is packed: threads with packers of their own, neighbours side by side, no waits
// between.
TEST_F(ExpertPackerCuda, PackersWorkBesideEachOther) {
  constexpr std::int64_t kExperts = 24, kThreads = 4;
  const leaves::Leaf& leaf = *leaves::all_leaves(Device::kCuda).back();
  FfnShape s = shapes_of(leaf).front();
  s.experts = kExperts;
  const ExpertLayout l = tile_expert_layout(s);
  const test::OnDevice<std::byte> bank(
      std::vector<std::byte>(std::size_t(kExperts) * l.bytes, kPoison));
  std::vector<std::jthread> threads;
  for (std::int64_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      ExpertPacker packer(s, l);
      for (std::int64_t e = t; e < kExperts; e += kThreads)
        packer.pack(expert_of(s, std::uint64_t(e)), 0.5f, bank.data() + std::size_t(e) * l.bytes);
      packer.wait();
    });
  threads.clear();
  const std::vector<std::byte> got = bank.get();
  for (std::int64_t e = 0; e < kExperts; ++e) {
    const std::vector<std::byte> expected = packed_by_host(s, expert_of(s, std::uint64_t(e)));
    ASSERT_EQ(std::memcmp(got.data() + std::size_t(e) * l.bytes, expected.data(), l.bytes), 0) << e;
  }
}

TEST_F(ExpertPackerCuda, RefusesWhatDoesNotFitAndPacksTheNext) {
  for (const leaves::Leaf* leaf : tiled()) {
    const FfnShape s = shapes_of(*leaf).front();
    ExpertPacker packer(s, tile_expert_layout(s));
    checkpoint::ExpertWeights e = expert_of(s, 3);
    const test::OnDevice<std::byte> memory(
        std::vector<std::byte>(tile_expert_layout(s).bytes, kPoison));
    e.down = hard_matrix(s.weights, s.hidden, s.inter + 2, 5);
    EXPECT_NE(test::usage_error_of([&] { packer.pack(e, 1, memory.data()); }), "");
    e = expert_of(s, 3);
    e.up.layout.block_cols = 64;  // the same codes, other scales
    EXPECT_NE(test::usage_error_of([&] { packer.pack(e, 1, memory.data()); }), "");
    expect_same(s, packer, expert_of(s, 3));
  }
}

}  // namespace
}  // namespace switchyard::ops
