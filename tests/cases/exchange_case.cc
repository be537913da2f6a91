// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/exchange_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "switchyard/base/check.h"
#include "switchyard/core/shard.h"
#include "switchyard/ops/quantize/quantize.h"

namespace switchyard::test {
namespace {

using formats::ActivationQuant;

constexpr std::int64_t kStridePad = 24;

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// h * bytes / width for h = 0, 1, 2 ..., without a division for each.
class Spread {
 public:
  Spread(std::int64_t bytes, std::int64_t width)
      : whole_(bytes / width), rest_(bytes % width), width_(width) {}
  std::int64_t next() {
    const std::int64_t out = at_;
    at_ += whole_;
    if ((sum_ += rest_) >= width_) {
      sum_ -= width_;
      ++at_;
    }
    return out;
  }

 private:
  std::int64_t whole_, rest_, width_, at_ = 0, sum_ = 0;
};

/// One expert's output row: reads every byte of the payload, and differs by slot and TP rank.
void expert_row(const std::byte* hidden, const std::byte* scales, Payload payload,
                std::int64_t slot, std::int64_t tp_rank, std::int64_t width, float* out) {
  Spread byte(payload.row_bytes, width), scale(payload.scale_bytes, width);
  std::int64_t last = payload.row_bytes - 1;
  for (std::int64_t h = 0; h < width; ++h) {
    float x = float(int(hidden[byte.next()])) - 100;
    x += float(int(hidden[last])) / 16;
    last = last > 0 ? last - 1 : payload.row_bytes - 1;
    if (payload.scale_bytes > 0) x += float(int(scales[scale.next()])) / 4;
    out[h] = x * (1 + float(slot) / 8) + float(slot) + float(tp_rank) * 3;
  }
}

/// Fills a range with noise, eight bytes at a time.
void fill(std::vector<std::byte>& out, std::uint64_t seed) {
  for (std::size_t i = 0; i < out.size(); i += 8) {
    const std::uint64_t noise = mix(seed + i);
    std::memcpy(out.data() + i, &noise, std::min(sizeof noise, out.size() - i));
  }
}

/// Keeps noise of 2 bytes among the bf16 values that a layer meets: exponents -7 to 1.
void tame(std::vector<std::byte>& rows) {
  constexpr unsigned kSign = 0x80, kExponent = 0x3c, kLast = 3;
  for (std::size_t i = 1; i < rows.size(); i += 2) {
    const unsigned high = unsigned(rows[i]);
    rows[i] = std::byte((high & kSign) | (kExponent + (high & kLast)));
  }
}

ActivationQuant quant_of(PayloadKind kind) {
  switch (kind) {
    case PayloadKind::kBf16:
      return ActivationQuant::kNone;
    case PayloadKind::kFp8Block:
      return ActivationQuant::kFp8Block128;
    case PayloadKind::kFp8Tensor:
      return ActivationQuant::kFp8Tensor;
    case PayloadKind::kMxfp8:
      return ActivationQuant::kMxfp8;
    case PayloadKind::kNvfp4:
      return ActivationQuant::kNvfp4;
  }
  throw InternalError("a kind of payload has no quantiser");
}

/// One bf16 row in the form of `kind`.
void quantise(PayloadKind kind, const std::byte* bf16, std::vector<float>& row, std::byte* codes,
              std::byte* scales) {
  for (std::size_t h = 0; h < row.size(); ++h)
    row[h] = load_element(Dtype::kBf16, bf16, std::int64_t(h));
  constexpr float kStatic = 0x1p-7F;
  ops::quantize_rows_to_codes({.kind = quant_of(kind),
                               .x = row.data(),
                               .rows = 1,
                               .cols = std::int64_t(row.size()),
                               .static_scale = kStatic,
                               .codes = reinterpret_cast<std::uint8_t*>(codes),
                               .scales = reinterpret_cast<std::uint8_t*>(scales)});
}

void add(float weight, const std::vector<float>& row, std::vector<float>& sum) {
  for (std::size_t h = 0; h < row.size(); ++h) sum[h] += weight * row[h];
}

}  // namespace

Payload payload_of(PayloadKind kind, std::int64_t hidden) {
  switch (kind) {
    case PayloadKind::kBf16:
      return {2 * hidden, 0};
    case PayloadKind::kFp8Block:
      return {hidden, (hidden + 127) / 128 * 4};
    case PayloadKind::kFp8Tensor:
      return {hidden, 0};
    case PayloadKind::kMxfp8:
      return {hidden, (hidden + 31) / 32};
    case PayloadKind::kNvfp4:
      return {hidden / 2, (hidden + 15) / 16};
  }
  return {0, 0};
}

comm::ExchangeShape exchange_shape(std::int64_t ep, std::int64_t slots, std::int64_t top_k,
                                   std::int64_t capacity, std::int64_t hidden) {
  comm::ExchangeShape out{.ep = ep,
                          .slots = slots,
                          .top_k = top_k,
                          .capacity = capacity,
                          .hidden = hidden,
                          .num_stats = slots};
  for (PayloadKind kind : kPayloadKinds) {
    Payload p = payload_of(kind, hidden);
    out.row_bytes = std::max(out.row_bytes, p.row_bytes);
    out.scale_bytes = std::max(out.scale_bytes, p.scale_bytes);
  }
  for (comm::Wire wire : kWires)
    out.share_bytes = std::max(out.share_bytes, comm::wire_bytes(wire, hidden));
  return out;
}

comm::ExchangeShape exchange_shape(std::int64_t ep, std::int64_t slots, std::int64_t top_k,
                                   std::int64_t capacity, std::int64_t hidden, PayloadKind kind,
                                   comm::Wire wire) {
  const Payload payload = payload_of(kind, hidden);
  return {.ep = ep,
          .slots = slots,
          .top_k = top_k,
          .capacity = capacity,
          .hidden = hidden,
          .row_bytes = payload.row_bytes,
          .scale_bytes = payload.scale_bytes,
          .share_bytes = comm::wire_bytes(wire, hidden),
          .num_stats = slots};
}

std::vector<std::int32_t> stats_of(const comm::ExchangeShape& shape, int rank, int round) {
  std::vector<std::int32_t> out;
  for (std::int64_t s = 0; s < shape.num_stats; ++s)
    out.push_back(std::int32_t(round * 100'000 + rank * 1000 + s));
  return out;
}

ExchangeInput::ExchangeInput(const comm::ExchangeShape& s, int rank, std::int64_t num_tokens,
                             int round, PayloadKind kind, comm::Wire combine_wire)
    : shape(s),
      payload(payload_of(kind, s.hidden)),
      wire(combine_wire),
      tokens(num_tokens),
      stats(stats_of(s, rank, round)) {
  std::uint64_t seed = mix(std::uint64_t(rank) * 1'000'003 + std::uint64_t(round));
  hidden.resize(std::size_t(tokens * (payload.row_bytes + kStridePad)));
  scales.resize(std::size_t(tokens * (payload.scale_bytes + kStridePad)));
  fill(hidden, seed);
  fill(scales, ~seed);
  if (kind == PayloadKind::kBf16) tame(hidden);
  for (std::int64_t t = 0; t < tokens; ++t) {
    // A step that shares no factor with `slots` visits each slot once.
    std::int64_t step = 1 + std::int64_t(mix(seed + std::uint64_t(t) * 7) % std::uint64_t(s.slots));
    while (std::gcd(step, s.slots) != 1) ++step;
    std::int64_t first = std::int64_t(mix(seed ^ std::uint64_t(t)) % std::uint64_t(s.slots));
    for (std::int64_t j = 0; j < s.top_k; ++j) {
      bool skipped =
          (t + j) % 7 == 3 || (t % 11 == 5);  // a choice here and there, a token now and then
      ids.push_back(skipped ? -1 : std::int32_t((first + j * step) % s.slots));
      weights.push_back(skipped
                            ? std::numeric_limits<float>::quiet_NaN()
                            : 0.05F + float(mix(seed + std::uint64_t(t * 64 + j)) % 1000) / 1700);
    }
  }
}

comm::DispatchArgs ExchangeInput::args() const {
  return {.tokens = tokens,
          .hidden = hidden.data(),
          .hidden_stride = payload.row_bytes + kStridePad,
          .row_bytes = payload.row_bytes,
          .scales = scales.data(),
          .scale_stride = payload.scale_bytes + kStridePad,
          .scale_bytes = payload.scale_bytes,
          .ids = ids.data(),
          .weights = weights.data(),
          .stats = stats.data(),
          .wire = wire};
}

ExchangeInput quantised(const ExchangeInput& plain, PayloadKind kind) {
  ExchangeInput out = plain;
  if (kind == PayloadKind::kBf16) return out;
  out.payload = payload_of(kind, plain.shape.hidden);
  const comm::DispatchArgs from = plain.args(), to = out.args();
  out.hidden.assign(std::size_t(out.tokens * to.hidden_stride), std::byte{0x5a});
  out.scales.assign(std::size_t(out.tokens * to.scale_stride), std::byte{0x5a});
  std::vector<float> row(std::size_t(plain.shape.hidden));
  for (std::int64_t t = 0; t < out.tokens; ++t)
    quantise(kind, plain.hidden.data() + t * from.hidden_stride, row,
             out.hidden.data() + t * to.hidden_stride, out.scales.data() + t * to.scale_stride);
  return out;
}

Requantised::Requantised(const comm::Received& in, PayloadKind kind, std::int64_t hidden)
    : received_(in) {
  if (kind == PayloadKind::kBf16) return;
  const Payload payload = payload_of(kind, hidden);
  std::int64_t rows = 0;
  for (const comm::Segment& s : in.segments) rows = std::max(rows, s.first + s.rows);
  hidden_.resize(std::size_t(rows * payload.row_bytes));
  scales_.resize(std::size_t(rows * payload.scale_bytes) + 1);
  std::vector<float> row;
  row.resize(std::size_t(hidden));
  for (const comm::Segment& s : in.segments)
    for (std::int64_t i = s.first; i < s.first + s.rows; ++i)
      quantise(kind, in.hidden + i * in.hidden_stride, row, hidden_.data() + i * payload.row_bytes,
               scales_.data() + i * payload.scale_bytes);
  received_.hidden = hidden_.data();
  received_.hidden_stride = payload.row_bytes;
  received_.scales = scales_.data();
  received_.scale_stride = payload.scale_bytes;
}

void serve(const comm::Received& in, const comm::ExchangeShape& shape,
           const comm::Contract& contract, Payload payload, int rank) {
  const Shard mine = ep_shard(shape.slots, shape.ep, rank / shape.tp);
  std::vector<float> row(std::size_t(shape.hidden)), sum(row.size());
  for (const comm::Segment& segment : in.segments)
    for (std::int64_t i = segment.first; i < segment.first + segment.rows; ++i) {
      std::fill(sum.begin(), sum.end(), 0.0F);
      bool any = false;
      for (std::int64_t j = 0; j < in.ids_per_row; ++j) {
        const std::int32_t local = in.ids[i * in.ids_per_row + j];
        if (local < 0) continue;
        any = true;
        expert_row(in.hidden + i * in.hidden_stride, in.scales + i * in.scale_stride, payload,
                   mine.begin + local, rank % shape.tp, shape.hidden, row.data());
        const float w = in.weights[i * in.ids_per_row + j];
        add(contract.weights == comm::WeightsBy::kExperts ? w : 1.0F, row, sum);
      }
      std::byte* share = in.shares + i * in.share_stride;
      if (any) {
        comm::encode_row(in.wire, sum.data(), shape.hidden, share);
      } else {
        std::fill_n(share, in.share_stride, std::byte{0xff});
      }
    }
}

namespace {

/// What the reference says of one token, whose sum it makes.
class TokenSums {
 public:
  TokenSums(const ExchangeInput& in, Slip slip)
      : in_(in),
        args_(in.args()),
        slip_(slip),
        row_(std::size_t(in.shape.hidden)),
        share_(row_.size()),
        wire_(std::size_t(comm::wire_bytes(in.wire, in.shape.hidden)) + 16) {}

  /// Each choice's row by itself, weighed behind the wire.
  void by_choice(std::int64_t token, float* sum) {
    const std::int64_t k = in_.shape.top_k;
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int64_t j = slip_.reversed ? k - 1 - i : i;
      if (id(token, j) < 0) continue;
      expert(token, j, 0);
      send(row_, weight(token, j), sum);
    }
  }
  /// Each rank's share, weighed in front of the wire.
  void by_rank(std::int64_t token, float* sum) {
    const std::int64_t ranks = in_.shape.ranks();
    for (std::int64_t i = 0; i < ranks; ++i) {
      const std::int64_t r = slip_.reversed ? ranks - 1 - i : i;
      const Shard held = ep_shard(in_.shape.slots, in_.shape.ep, r / in_.shape.tp);
      std::fill(share_.begin(), share_.end(), 0.0F);
      bool any = false;
      for (std::int64_t j = 0; j < in_.shape.top_k; ++j) {
        if (id(token, j) < held.begin || id(token, j) >= held.begin + held.size) continue;
        any = true;
        expert(token, j, r);
        add(weight(token, j), row_, share_);
      }
      if (any) send(share_, 1, sum);
    }
  }
  /// All of it in double.
  void exact(std::int64_t token, double* sum) {
    for (std::int64_t j = 0; j < in_.shape.top_k; ++j)
      for (std::int64_t tp = 0; tp < in_.shape.tp && id(token, j) >= 0; ++tp) {
        expert(token, j, tp);
        for (std::size_t h = 0; h < row_.size(); ++h)
          sum[h] += double(weight(token, j)) * double(row_[h]);
      }
  }

 private:
  std::size_t at(std::int64_t token, std::int64_t j) const {
    return std::size_t(token * in_.shape.top_k + j);
  }
  std::int32_t id(std::int64_t token, std::int64_t j) const { return in_.ids[at(token, j)]; }
  float weight(std::int64_t token, std::int64_t j) const { return in_.weights[at(token, j)]; }
  void expert(std::int64_t token, std::int64_t j, std::int64_t rank) {
    expert_row(in_.hidden.data() + token * args_.hidden_stride,
               in_.scales.data() + token * args_.scale_stride, in_.payload, id(token, j),
               rank % in_.shape.tp, in_.shape.hidden, row_.data());
  }
  void send(const std::vector<float>& row, float weight, float* sum) {
    if (slip_.unrounded) {
      for (std::size_t h = 0; h < row.size(); ++h) sum[h] += weight * row[h];
      return;
    }
    comm::encode_row(in_.wire, row.data(), in_.shape.hidden, wire_.data());
    comm::add_row(in_.wire, wire_.data(), weight, in_.shape.hidden, sum);
  }

  const ExchangeInput& in_;
  comm::DispatchArgs args_;
  Slip slip_;
  std::vector<float> row_, share_;
  std::vector<std::byte> wire_;
};

}  // namespace

std::vector<float> expected_sums(const ExchangeInput& in, const comm::Contract& contract,
                                 Slip slip) {
  std::vector<float> out(std::size_t(in.tokens * in.shape.hidden));
  TokenSums sums(in, slip);
  for (std::int64_t t = 0; t < in.tokens; ++t) {
    float* sum = out.data() + t * in.shape.hidden;
    contract.weights == comm::WeightsBy::kCombine ? sums.by_choice(t, sum) : sums.by_rank(t, sum);
  }
  return out;
}

std::vector<double> exact_sums(const ExchangeInput& in) {
  std::vector<double> out(std::size_t(in.tokens * in.shape.hidden));
  TokenSums sums(in, {});
  for (std::int64_t t = 0; t < in.tokens; ++t) sums.exact(t, out.data() + t * in.shape.hidden);
  return out;
}

SumCollector::SumCollector(std::int64_t tokens, std::int64_t width)
    : hidden(width), sums(std::size_t(tokens * width), std::numeric_limits<float>::quiet_NaN()) {}

comm::RowSink SumCollector::sink() {
  return {this, [](void* self, std::int64_t token, const float* sum) {
            auto* c = static_cast<SumCollector*>(self);
            if (token != c->rows++) return;  // out of order: leaves NaN, and a row too few or many
            std::copy_n(sum, c->hidden, c->sums.data() + token * c->hidden);
          }};
}

}  // namespace switchyard::test
