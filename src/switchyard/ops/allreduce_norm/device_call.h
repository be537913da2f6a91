// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/ops/allreduce_norm/allreduce_norm.h"
#include "switchyard/ops/allreduce_norm/allreduce_peers.h"
#include "switchyard/ops/allreduce_norm/device_units.h"
#include "switchyard/ops/allreduce_norm/device_wait.h"

/// One call as the kernels take it, and the contribution of its own GPU. For .cu files only.
namespace switchyard::ops::fused {

/// Which contribution there is.
enum class Source : std::uint8_t { kPlain, kWeighted };

/// Weighted expert rows: those of an index (pattern 7), or without one of every expert (6).
struct WeightedRows {
  const void* rows = nullptr;
  std::int64_t num_rows = 0;
  const std::int32_t* index = nullptr;  // [tokens, count]; null: row i of token m is i * tokens + m
  std::int32_t count = 0;               // choices, or experts
  const void* weights = nullptr;        // [tokens, count], without an index [count, tokens]
  bool weights_in_t = false;
  float factor = 1;
  const void* extra = nullptr;  // [tokens, hidden], added after the factor
};

/// The quantised output.
struct DeviceQuant {
  AllReduceQuant kind = AllReduceQuant::kNone;
  const float* scale = nullptr;
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;  // of fp8_token: floats
  formats::ScaleLayout layout = formats::ScaleLayout::kLinear;
  std::int64_t group = 0;
};

/// What a launch needs, by value.
struct FusedCall {
  std::int64_t tokens = 0, hidden = 0;
  int units = 0;
  bool vectors = false, legacy = false;
  bool word_scales = false;  // scales may be written in words
  bool staged = false;       // choices lie in shared memory, and vectors fit
  int pushers =
      0;           // blocks in front that send rows and finish none; 0: each finishes what it sends
  int slices = 1;  // of a row, each sent by one block
  int clearers = 0;  // blocks behind that only clear padding; 0: those that finish rows do
  const void* input = nullptr;
  WeightedRows weighted;
  void* output = nullptr;
  bool has_norm = false, wants_norm = false;
  const void* residual_in = nullptr;
  const void* gamma = nullptr;
  float eps = 0, weight_bias = 0;
  void* residual_out = nullptr;
  void* norm_out = nullptr;
  DeviceQuant quant;
  AllReducePeers peers;

  __device__ Rows rows() const { return {hidden, vectors}; }
};

/// Where this call's words and rows lie in a rank's exchange memory.
struct Bank {
  const FusedCall& call;
  std::uint32_t number;  // of the call

  __device__ std::byte* header(int at, int source) const {
    const std::int64_t line = std::int64_t(number % kAllReduceGenerations) * kMaxDeviceRanks;
    return call.peers.slices[at] + (line + source) * kExchangeLineBytes;
  }
  __device__ std::byte* begin(int at) const {
    return call.peers.slices[at] + kExchangeHeaderBytes +
           std::int64_t(number % kAllReduceGenerations) * call.peers.bank_bytes;
  }
  /// One-shot: rank `source`'s contribution to token m; two-shot: to the m-th row that `at` owns.
  __device__ std::byte* contribution(int at, int source, std::int64_t m, std::int64_t rows,
                                     std::int64_t row_bytes) const {
    return begin(at) + (source * rows + m) * row_bytes;
  }
};

/// Weight number `i`; 1 where there are none.
template <class T>
__device__ inline float weight_of(const WeightedRows& r, std::int64_t i) {
  if (r.weights == nullptr) return 1;
  if (r.weights_in_t) return T::load(static_cast<const typename T::Bits*>(r.weights)[i]);
  return static_cast<const float*>(r.weights)[i];
}

/// Tells of an index that names no row, which is then skipped.
__device__ inline std::int32_t bad_row(const FusedCall& c, std::int64_t at, std::int32_t row) {
  report(c.peers, {.trouble = AllReduceTrouble::kBadRow,
                   .peer = c.peers.rank,
                   .token = at,
                   .mine = std::uint32_t(row)});
  return -1;
}

/// The row that a choice names, -1 for none, and its weight.
struct Choice {
  std::int32_t row;
  float weight;
};

/// Where the choices of token m begin, and how far apart they are.
struct Choices {
  std::int64_t begin, step;
  __device__ Choices(const FusedCall& c, std::int64_t m)
      : begin(c.weighted.index != nullptr ? m * c.weighted.count : m),
        step(c.weighted.index != nullptr ? 1 : c.tokens) {}
  __device__ std::int64_t at(int i) const { return begin + i * step; }
};

/// The choice at `at`. What has no row or no weight is skipped: as 0 times 0, which changes no sum
/// that started at +0.
template <class T>
__device__ inline Choice read_choice(const FusedCall& c, std::int64_t at) {
  const WeightedRows& r = c.weighted;
  Choice choice{r.index != nullptr ? r.index[at] : std::int32_t(at), weight_of<T>(r, at)};
  if (choice.row < -1 || choice.row >= r.num_rows) choice.row = bad_row(c, at, choice.row);
  if (choice.weight == 0 || choice.row < 0) choice = {-1, 0};
  return choice;
}

/// Most choices of a token that a block keeps in shared memory.
inline constexpr int kStagedChoices = 256;
/// How many of them a thread adds at a time.
template <class T>
inline constexpr int kChoiceBatch = T::kWords == 4 ? 8 : 4;

/// Puts the choices of token m into shared memory, so that no thread looks at one while rows could
/// be on their way. All threads of the block call it.
template <class T>
__device__ inline void stage_choices(const FusedCall& c, std::int64_t m, Choice* staged) {
  if (!c.staged) return;
  constexpr int kBatch = kChoiceBatch<T>;
  static_assert(kStagedChoices % kBatch == 0);
  const Choices choices(c, m);
  const int count = c.weighted.count, whole = (count + kBatch - 1) / kBatch * kBatch;
  __syncthreads();  // those of the row before have been used
  for (int i = int(threadIdx.x); i < whole; i += int(blockDim.x))
    staged[i] = i < count ? read_choice<T>(c, choices.at(i)) : Choice{-1, 0};
  __syncthreads();
}

/// acc += the weighted rows of token m at unit `u`, then the factor and what is added behind it.
/// All loads of a batch are asked for before the first is used.
template <class T>
__device__ __forceinline__ void add_weighted(const FusedCall& c, std::int64_t m, int u,
                                             const Choice* staged, float (&acc)[kUnit]) {
  constexpr int kBatch = kChoiceBatch<T>;
  const WeightedRows& r = c.weighted;
  const Unit<T> extra = r.extra != nullptr ? load_vectors<T>(c.rows(), r.extra, m, u) : zeros<T>();
  for (int first = 0; first < r.count; first += kBatch) {
    Unit<T> unit[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const std::int32_t row = staged[first + i].row;
      unit[i] = row < 0 ? zeros<T>() : load_vectors<T>(c.rows(), r.rows, row, u);
    }
    // Else the assembler saves registers by moving each load to where it is used, behind a wait.
    __syncwarp(__activemask());
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float weight = staged[first + i].weight;
      float x[kUnit];
      widen(unit[i], x);
#pragma unroll
      for (int e = 0; e < kUnit; ++e) acc[e] = acc[e] + weight * x[e];
    }
  }
  float x[kUnit];
  widen(extra, x);
#pragma unroll
  for (int e = 0; e < kUnit; ++e) {
    if (r.factor != 1) acc[e] = acc[e] * r.factor;
    if (r.extra != nullptr) acc[e] = acc[e] + x[e];
  }
}

/// add_weighted() for rows that vectors do not fit, for rounding to T at every step and for more
/// choices than are staged: one row after another, out of line.
template <class T>
__device__ __noinline__ void add_weighted_slowly(const FusedCall& c, std::int64_t m, int u,
                                                 float (&acc)[kUnit]) {
  const WeightedRows& r = c.weighted;
  const Choices choices(c, m);
  auto rounded = [&](float x) { return c.legacy ? T::round(x) : x; };
  float x[kUnit];
  for (int i = 0; i < r.count; ++i) {
    const Choice choice = read_choice<T>(c, choices.at(i));
    if (choice.row < 0) continue;
    widen(load_unit<T>(c.rows(), r.rows, choice.row, u), x);
    for (int e = 0; e < kUnit; ++e) acc[e] = rounded(acc[e] + rounded(choice.weight * x[e]));
  }
  if (r.factor != 1)
    for (int e = 0; e < kUnit; ++e) acc[e] = rounded(acc[e] * r.factor);
  if (r.extra == nullptr) return;
  widen(load_unit<T>(c.rows(), r.extra, m, u), x);
  for (int e = 0; e < kUnit; ++e) acc[e] = rounded(acc[e] + x[e]);
}

/// Unit `u` of this rank's contribution to token m, whose choices are staged, in fp32, from +0.
template <class T, Source kSource>
__device__ inline void contribution(const FusedCall& c, std::int64_t m, int u, const Choice* staged,
                                    float (&acc)[kUnit]) {
#pragma unroll
  for (int e = 0; e < kUnit; ++e) acc[e] = 0;
  if constexpr (kSource == Source::kPlain) {
    float x[kUnit];
    widen(load_unit<T>(c.rows(), c.input, m, u), x);
#pragma unroll
    for (int e = 0; e < kUnit; ++e) acc[e] += x[e];
  } else if (c.staged) {
    add_weighted<T>(c, m, u, staged, acc);
  } else {
    add_weighted_slowly<T>(c, m, u, acc);
  }
}

}  // namespace switchyard::ops::fused
