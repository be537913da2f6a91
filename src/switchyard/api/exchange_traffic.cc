// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/exchange_traffic.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "switchyard/base/check.h"
#include "switchyard/base/nearest.h"
#include "switchyard/base/random.h"
#include "switchyard/core/shard.h"
#include "switchyard/ops/quantize/quantize.h"

namespace switchyard {
namespace {

constexpr std::string_view kPayloads[] = {"bf16", "fp8", "mxfp8", "nvfp4"};
constexpr std::string_view kPatterns[] = {"balanced", "hotspot", "local", "ring"};

template <class E, std::size_t N>
E word_to(const std::string_view (&words)[N], std::string_view what, std::string_view s) {
  for (std::size_t i = 0; i < N; ++i)
    if (words[i] == s) return E(i);
  throw UsageError(
      cat(what, " '", s, "' is unknown; ", suggest(s, std::vector<std::string>(words, words + N))));
}

}  // namespace

std::string_view to_string(ExchangePayload p) { return kPayloads[std::size_t(p)]; }
std::string_view to_string(TrafficPattern p) { return kPatterns[std::size_t(p)]; }

ExchangePayload to_exchange_payload(std::string_view s) {
  return word_to<ExchangePayload>(kPayloads, "payload", s);
}

TrafficPattern to_traffic_pattern(std::string_view s) {
  return word_to<TrafficPattern>(kPatterns, "pattern", s);
}

namespace api {
namespace {

constexpr std::int64_t kCheckedTokens = 16;
// In front of a row stand its token and the rank that it comes from.
constexpr std::size_t kMark = 8;

/// Distinct slots of a token: from a range first, then from all.
void choose_slots(const TrafficSpec& spec, int rank, std::int64_t token, std::int32_t* out) {
  const comm::ExchangeShape& s = spec.shape;
  const Random random(spec.seed + std::uint64_t(rank) * 1'000'003, 17);
  std::uint64_t draw = std::uint64_t(token) * 4096;
  Shard from{0, s.slots};
  std::int64_t ranged = 0;
  if (spec.pattern != TrafficPattern::kBalanced) {
    const std::int64_t at = spec.pattern == TrafficPattern::kHotspot ? 0
                            : spec.pattern == TrafficPattern::kLocal ? rank
                                                                     : (rank + 1) % s.ep;
    from = ep_shard(s.slots, s.ep, at);
    ranged = spec.pattern == TrafficPattern::kHotspot ? (s.top_k + 1) / 2 : s.top_k;
    ranged = std::min(ranged, from.size);
  }
  for (std::int64_t j = 0; j < s.top_k; ++j) {
    const Shard range = j < ranged ? from : Shard{0, s.slots};
    std::int32_t id;
    do {
      id =
          std::int32_t(range.begin + std::int64_t(random.bits(draw++) % std::uint64_t(range.size)));
    } while (std::find(out, out + j, id) != out + j);
    out[j] = id;
  }
}

void fill(std::span<std::byte> out, const Random& random) {
  for (std::size_t i = 0; i < out.size(); i += 8) {
    const std::uint64_t noise = random.bits(i / 8);
    std::memcpy(out.data() + i, &noise, std::min<std::size_t>(8, out.size() - i));
  }
}

}  // namespace

namespace {

/// The quantiser whose rows a payload is.
formats::ActivationQuant quant_of(ExchangePayload p) {
  using Quant = formats::ActivationQuant;
  switch (p) {
    case ExchangePayload::kBf16:
      return Quant::kNone;
    case ExchangePayload::kFp8:
      return Quant::kFp8Block128;
    case ExchangePayload::kMxfp8:
      return Quant::kMxfp8;
    case ExchangePayload::kNvfp4:
      return Quant::kNvfp4;
  }
  throw InternalError("a payload has no quantiser");
}

}  // namespace

void fit_shape(TrafficSpec& spec) {
  comm::ExchangeShape& s = spec.shape;
  s.row_bytes = ops::activation_code_bytes(quant_of(spec.payload), s.hidden);
  s.scale_bytes = ops::activation_scale_bytes(quant_of(spec.payload), s.hidden);
  s.share_bytes = comm::wire_bytes(spec.wire, s.hidden);
}

Traffic::Traffic(const TrafficSpec& spec, int rank)
    : spec_(spec),
      rank_(rank),
      tokens_(spec.shape.capacity),
      stride_(std::max<std::int64_t>(1, (tokens_ + kCheckedTokens - 1) / kCheckedTokens)),
      hidden_(std::size_t(tokens_ * spec.shape.row_bytes)),
      scales_(std::size_t(tokens_ * spec.shape.scale_bytes)) {
  const comm::ExchangeShape& s = spec_.shape;
  ensure(s.row_bytes >= std::int64_t(kMark), "rows of ", s.row_bytes, " bytes hold no mark");
  const std::uint64_t key = spec.seed * 31 + std::uint64_t(rank);
  fill(hidden_.bytes(), Random(key, 1));
  fill(scales_.bytes(), Random(key, 2));
  const Random random(key, 3);
  ids_.resize(std::size_t(tokens_ * s.top_k));
  for (std::int64_t t = 0; t < tokens_; ++t) {
    const std::int32_t mark[2] = {std::int32_t(t), rank};
    std::memcpy(hidden_.data() + t * s.row_bytes, mark, kMark);
    choose_slots(spec_, rank, t, ids_.data() + t * s.top_k);
    for (std::int64_t j = 0; j < s.top_k; ++j)
      weights_.push_back(0.05F + random.uniform(std::uint64_t(t * s.top_k + j)));
  }
}

comm::DispatchArgs Traffic::args() const {
  const comm::ExchangeShape& s = spec_.shape;
  return {.tokens = tokens_,
          .hidden = hidden_.data(),
          .hidden_stride = s.row_bytes,
          .row_bytes = s.row_bytes,
          .scales = scales_.data(),
          .scale_stride = s.scale_bytes,
          .scale_bytes = s.scale_bytes,
          .ids = ids_.data(),
          .weights = weights_.data(),
          .wire = spec_.wire};
}

void Traffic::expert_row(const std::byte* hidden, const std::byte* scales, std::int64_t slot,
                         float* out) const {
  const comm::ExchangeShape& s = spec_.shape;
  const std::int64_t bytes = std::max(s.hidden, s.row_bytes);  // every byte counts
  std::fill_n(out, s.hidden, float(slot));
  for (std::int64_t i = 0; i < bytes; ++i)
    out[i % s.hidden] += float(int(hidden[i % s.row_bytes]) - 128) * (1 + float(slot) / 8);
  for (std::int64_t i = 0; i < s.scale_bytes; ++i) out[i % s.hidden] += float(int(scales[i])) / 4;
}

void Traffic::serve(const comm::Received& in, const comm::Contract& contract) const {
  const comm::ExchangeShape& s = spec_.shape;
  const Shard mine = ep_shard(s.slots, s.ep, rank_);
  std::vector<float> row(std::size_t(s.hidden)), sum(row.size(), 0.5F);
  std::vector<std::byte> other(std::size_t(s.share_bytes) + 16);
  comm::encode_row(in.wire, sum.data(), s.hidden, other.data());
  for (const comm::Segment& segment : in.segments)
    for (std::int64_t i = segment.first; i < segment.first + segment.rows; ++i) {
      const std::byte* hidden = in.hidden + i * in.hidden_stride;
      std::byte* share = in.shares + i * in.share_stride;
      std::int32_t mark[2];
      std::memcpy(mark, hidden, kMark);
      if (!is_checked(mark[0])) {
        std::memcpy(share, other.data(), std::size_t(s.share_bytes));
        continue;
      }
      std::fill(sum.begin(), sum.end(), 0.0F);
      for (std::int64_t j = 0; j < in.ids_per_row; ++j) {
        const std::int32_t local = in.ids[i * in.ids_per_row + j];
        if (local < 0) continue;
        expert_row(hidden, in.scales + i * in.scale_stride, mine.begin + local, row.data());
        const float weight = contract.weights == comm::WeightsBy::kExperts
                                 ? in.weights[i * in.ids_per_row + j]
                                 : 1.0F;
        for (std::size_t h = 0; h < row.size(); ++h) sum[h] += weight * row[h];
      }
      comm::encode_row(in.wire, sum.data(), s.hidden, share);
    }
}

std::int64_t Traffic::rows_needed(const comm::Contract& contract) const {
  const comm::ExchangeShape& s = spec_.shape;
  if (contract.weights == comm::WeightsBy::kCombine) return tokens_ * s.top_k;
  std::int64_t out = 0;
  for (std::int64_t r = 0; r < s.ep; ++r) {
    const Shard held = ep_shard(s.slots, s.ep, r);
    for (std::int64_t t = 0; t < tokens_; ++t) {
      const std::int32_t* ids = ids_.data() + t * s.top_k;
      out += std::any_of(ids, ids + s.top_k, [&](std::int32_t id) {
        return id >= held.begin && id < held.begin + held.size;
      });
    }
  }
  return out;
}

std::int64_t Traffic::checked() const { return (tokens_ + stride_ - 1) / stride_; }

void Traffic::expected(std::int64_t token, const comm::Contract& contract, float* sum) const {
  const comm::ExchangeShape& s = spec_.shape;
  const std::int32_t* ids = ids_.data() + token * s.top_k;
  const float* weights = weights_.data() + token * s.top_k;
  std::vector<float> row(std::size_t(s.hidden)), share(row.size());
  std::vector<std::byte> wire(std::size_t(s.share_bytes) + 16);
  auto expert = [&](std::int64_t j) {
    expert_row(hidden_.data() + token * s.row_bytes, scales_.data() + token * s.scale_bytes, ids[j],
               row.data());
  };
  std::fill_n(sum, s.hidden, 0.0F);
  if (contract.weights == comm::WeightsBy::kCombine) {
    for (std::int64_t j = 0; j < s.top_k; ++j) {
      expert(j);
      comm::encode_row(spec_.wire, row.data(), s.hidden, wire.data());
      comm::add_row(spec_.wire, wire.data(), weights[j], s.hidden, sum);
    }
    return;
  }
  for (std::int64_t r = 0; r < s.ep; ++r) {
    const Shard held = ep_shard(s.slots, s.ep, r);
    bool any = false;
    std::fill(share.begin(), share.end(), 0.0F);
    for (std::int64_t j = 0; j < s.top_k; ++j) {
      if (ids[j] < held.begin || ids[j] >= held.begin + held.size) continue;
      any = true;
      expert(j);
      for (std::size_t h = 0; h < row.size(); ++h) share[h] += weights[j] * row[h];
    }
    if (!any) continue;
    comm::encode_row(spec_.wire, share.data(), s.hidden, wire.data());
    comm::add_row(spec_.wire, wire.data(), 1, s.hidden, sum);
  }
}

std::int64_t Traffic::wrong(const std::vector<float>& sums, const comm::Contract& contract) const {
  const std::size_t width = std::size_t(spec_.shape.hidden);
  std::vector<float> want(width);
  std::int64_t out = 0;
  for (std::int64_t t = 0; t < tokens_; t += stride_) {
    expected(t, contract, want.data());
    out += std::memcmp(want.data(), sums.data() + std::size_t(t) * width, width * 4) != 0;
  }
  return out;
}

}  // namespace api
}  // namespace switchyard
