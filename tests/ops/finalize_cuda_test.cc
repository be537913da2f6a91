// SPDX-License-Identifier: Apache-2.0
// The layer's sum over a token's rows, many tokens in one launch against few at a time, bit for
// bit: the two are different kernels.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "switchyard/base/device_stream.h"
#include "switchyard/base/dtype.h"
#include "switchyard/base/random.h"
#include "switchyard/ops/grouped_ffn/device_stages.h"
#include "tests/support/device.h"

namespace switchyard::ops {
namespace {

using test::OnDevice;

class FinalizeCuda : public test::NeedsGpu {};

/// What a case changes.
struct Sum {
  std::int64_t tokens = 1100, hidden = 520, top_k = 8, unscaled = 0, zero_experts = 0;
  bool weight_on_input = false, addend = false, sorted_early = false;
  std::int64_t x_gap = 0;  // behind a token's row
  Dtype out = Dtype::kBf16;
  float factor = 2.5F;
  float first_weight = 0.25F;
};

/// Random rows in random places; a choice in seven is skipped, and one in eleven is a zero expert's
/// where there are any.
struct Inputs {
  explicit Inputs(const Sum& s) : sum(s), stride((s.hidden + 3) / 4 * 4 + 8) {
    const Random random(5, 3);
    const std::int64_t choices = s.tokens * s.top_k;
    for (std::int64_t i = 0; i < choices; ++i) {
      const std::uint64_t bits = random.bits(std::uint64_t(i));
      const bool zero = s.zero_experts > 0 && bits % 11 == 0, skipped = bits % 7 == 0;
      ids.push_back(zero ? kExperts : skipped ? -1 : std::int32_t(bits / 77 % kExperts));
      sorted.push_back(zero || skipped ? -1 : std::int32_t((i * 7919) % kRows));
      weights.push_back(random.normal(std::uint64_t(i) + (1U << 20)));
    }
    sorted[0] = 0, ids[0] = 0, weights[0] = s.first_weight;
    for (std::int64_t i = 0; i < kRows * stride; ++i)
      rows.push_back(i % stride < s.hidden ? random.normal(std::uint64_t(i) + (1U << 24))
                                           : std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t i = 0; i < s.tokens * (s.hidden + s.x_gap); ++i)
      x.push_back(float_to_bf16(random.normal(std::uint64_t(i) + (1U << 28))));
    for (std::int64_t i = 0; i < s.tokens * s.hidden; ++i)
      addend.push_back(s.addend ? random.normal(std::uint64_t(i) + (1U << 29)) : 0);
  }

  static constexpr std::int32_t kExperts = 40;
  static constexpr std::int64_t kRows = 997;
  Sum sum;
  std::int64_t stride;
  std::vector<std::int32_t> ids, sorted;
  std::vector<float> weights, rows, addend;
  std::vector<std::uint16_t> x;
};

/// The output, with canaries behind each row, of launches of at most `most` tokens.
std::vector<std::byte> finalized(const Inputs& in, std::int64_t most) {
  const Sum& s = in.sum;
  constexpr std::int64_t kGap = 3;
  const std::int64_t size = std::int64_t(size_of(s.out)), out_stride = s.hidden + kGap;
  const OnDevice<float> rows(in.rows), weights(in.weights), addend(in.addend);
  const OnDevice<std::int32_t> ids(in.ids), sorted(in.sorted);
  const OnDevice<std::uint16_t> x(in.x);
  const OnDevice<std::byte> out(
      std::vector<std::byte>(std::size_t(s.tokens * out_stride * size), std::byte(0x55)));
  const DeviceStream stream;
  for (std::int64_t t = 0; t < s.tokens; t += most)
    finalize_cuda({.rows = rows.data(),
                   .rows_stride = in.stride,
                   .sorted_of = sorted.data() + t * s.top_k,
                   .ids = ids.data() + t * s.top_k,
                   .weights = weights.data() + t * s.top_k,
                   .tokens = std::min(most, s.tokens - t),
                   .hidden = s.hidden,
                   .top_k = s.top_k,
                   .unscaled_choices = s.unscaled,
                   .experts = Inputs::kExperts,
                   .zero_experts = s.zero_experts,
                   .weight_on_input = s.weight_on_input,
                   .factor = s.factor,
                   .x = x.data() + t * (s.hidden + s.x_gap),
                   .x_stride = s.hidden + s.x_gap,
                   .addend = s.addend ? addend.data() + t * s.hidden : nullptr,
                   .out_dtype = s.out,
                   .out = out.data() + t * out_stride * size,
                   .out_stride = out_stride,
                   .sorted_early = s.sorted_early},
                  stream.get());
  stream.wait();
  return out.get();
}

/// Few at a time are what all the other tests of layers see.
constexpr std::int64_t kFew = 100;

void expect_same_bits(const Sum& s) {
  SCOPED_TRACE(testing::Message() << s.hidden << " columns, " << s.top_k << " choices, "
                                  << to_string(s.out));
  const Inputs in(s);
  const std::vector<std::byte> want = finalized(in, kFew);
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(finalized(in, s.tokens) == want);
  Sum other = s;
  other.first_weight = 0.75F;
  if (s.weight_on_input) other.factor = 1.5F;  // a row's weight is not read there
  EXPECT_FALSE(finalized(Inputs(other), s.tokens) == want) << "the control";
}

TEST_F(FinalizeCuda, ManyTokensHaveTheBitsOfFew) {
  for (std::int64_t hidden : {4, 37, 510, 512, 516, 2048, 2880})
    for (std::int64_t top_k : {1, 2, 8}) expect_same_bits({.hidden = hidden, .top_k = top_k});
  for (std::int64_t top_k : {9, 22, 25, 32}) expect_same_bits({.top_k = top_k});
  for (std::int64_t tokens : {511, 512, 513, 9000}) expect_same_bits({.tokens = tokens});
}

TEST_F(FinalizeCuda, EveryFieldHasTheBitsOfFew) {
  for (Dtype out : {Dtype::kBf16, Dtype::kFp16, Dtype::kF32})
    for (bool addend : {false, true})
      expect_same_bits({.zero_experts = 1, .addend = addend, .out = out});
  expect_same_bits({.top_k = 9, .unscaled = 1, .addend = true});
  expect_same_bits({.zero_experts = 1, .weight_on_input = true});
  expect_same_bits({.zero_experts = 1, .sorted_early = true, .x_gap = 5});
}

}  // namespace
}  // namespace switchyard::ops
