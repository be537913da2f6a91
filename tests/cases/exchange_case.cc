// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/exchange_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "switchyard/core/shard.h"

namespace switchyard::test {
namespace {

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

std::vector<float> expected_sums(const ExchangeInput& in, const comm::Contract& contract) {
  const comm::ExchangeShape& s = in.shape;
  const comm::DispatchArgs args = in.args();
  const std::size_t width = std::size_t(s.hidden);
  std::vector<float> out(std::size_t(in.tokens) * width), row(width), share(width);
  std::vector<std::byte> wire(std::size_t(s.share_bytes) + 16);
  for (std::int64_t t = 0; t < in.tokens; ++t) {
    float* sum = out.data() + std::size_t(t) * width;
    auto expert = [&](std::int64_t j, std::int64_t rank) {
      expert_row(in.hidden.data() + t * args.hidden_stride,
                 in.scales.data() + t * args.scale_stride, in.payload,
                 in.ids[std::size_t(t * s.top_k + j)], rank % s.tp, s.hidden, row.data());
    };
    auto weight = [&](std::int64_t j) { return in.weights[std::size_t(t * s.top_k + j)]; };
    auto id = [&](std::int64_t j) { return in.ids[std::size_t(t * s.top_k + j)]; };
    if (contract.weights == comm::WeightsBy::kCombine) {
      for (std::int64_t j = 0; j < s.top_k; ++j) {
        if (id(j) < 0) continue;
        expert(j, 0);
        comm::encode_row(in.wire, row.data(), s.hidden, wire.data());
        comm::add_row(in.wire, wire.data(), weight(j), s.hidden, sum);
      }
      continue;
    }
    for (std::int64_t r = 0; r < s.ranks(); ++r) {
      const Shard held = ep_shard(s.slots, s.ep, r / s.tp);
      std::fill(share.begin(), share.end(), 0.0F);
      bool any = false;
      for (std::int64_t j = 0; j < s.top_k; ++j) {
        if (id(j) < held.begin || id(j) >= held.begin + held.size) continue;
        any = true;
        expert(j, r);
        add(weight(j), row, share);
      }
      if (!any) continue;
      comm::encode_row(in.wire, share.data(), s.hidden, wire.data());
      comm::add_row(in.wire, wire.data(), 1, s.hidden, sum);
    }
  }
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
