// SPDX-License-Identifier: Apache-2.0
// Each field of what a layer hands to its fused end, set to another value: the outputs change as
// the oracle says. A field without a case fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "switchyard/base/random.h"
#include "switchyard/core/preset.h"
#include "switchyard/layer/fused_end.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm_ref.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/same_bits.h"

namespace switchyard::layer {
namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kTokens = 5, kHeld = 4;
constexpr Dtype kDtype = Dtype::kBf16;
using Bytes = std::vector<std::uint8_t>;

// A binding of another number of fields does not compile.
template <class T>
int fields_of();
template <>
int fields_of<BehindLayer>() {
  [[maybe_unused]] const auto [a, b, c, d, e, f] = BehindLayer{};
  return 6;
}
template <>
int fields_of<LocalOutput>() {
  [[maybe_unused]] const auto [a, b, c, d, e] = LocalOutput{};
  return 5;
}

Bytes normals(std::int64_t count, std::uint64_t stream) {
  Bytes out(std::size_t(count) * size_of(kDtype));
  const Random random(11, stream);
  for (std::int64_t i = 0; i < count; ++i)
    store_element(kDtype, out.data(), i, random.normal(std::uint64_t(i)));
  return out;
}

/// One rank's tensors, other ones for each rank, and what it hands over.
struct RankEnd {
  RankEnd(const Problem& p, int rank)
      : k(p.top_k()),
        hidden(p.hidden),
        rows(normals(kTokens * k * hidden, 20 + std::uint64_t(rank))),
        residual(normals(kTokens * hidden, 1)),
        other_residual(normals(kTokens * hidden, 2)),
        gamma(normals(hidden, 3)),
        residual_out(std::size_t(kTokens * hidden) * 2, 0xcd),
        norm_out(residual_out) {
    const Random random(5, std::uint64_t(rank));
    for (std::int64_t i = 0; i < kTokens * k; ++i) {
      // Distinct experts of a token; one choice of the first token is not on this rank.
      ids.push_back(i == rank ? -1 : std::int32_t((i / k + i % k + rank) % kHeld));
      other_ids.push_back(i % k == 0 ? -1 : ids.back());
      weights.push_back(ids.back() < 0 ? 0 : 0.25F + random.uniform(std::uint64_t(i)));
      other_weights.push_back(weights.back() * 0.5F);
    }
    for (std::int64_t i = 0; i < kTokens * hidden; ++i)
      shared.push_back(random.normal(std::uint64_t(1000 + i)));
    local = {kTokens, ids.data(), weights.data(), 1, shared.data()};
    behind = {residual.data(), gamma.data(), 1e-6F, 0, residual_out.data(), norm_out.data()};
  }
  /// The oracle's call of what is handed over.
  ops::AllReduceCall oracle_call() {
    index.clear();
    for (std::int64_t i = 0; i < local.tokens * k; ++i)
      index.push_back(local.ids[i] < 0 ? -1 : std::int32_t(i));
    rounded.resize(std::size_t(kTokens * hidden) * 2);
    for (std::int64_t i = 0; local.shared != nullptr && i < kTokens * hidden; ++i)
      store_element(kDtype, rounded.data(), i, local.shared[i]);
    return ops::MoEFinalizeArgs{
        {.tokens = local.tokens, .hidden = hidden, .dtype = kDtype},
        {.rows = rows.data(),
         .num_rows = kTokens * k,
         .expanded_idx_to_permuted_idx = index.data(),
         .top_k = k,
         .expert_scale_factor = local.weights,
         .routed_scaling_factor = local.factor,
         .shared_expert_output = local.shared != nullptr ? rounded.data() : nullptr},
        {.residual_in = behind.residual_in,
         .rms_gamma = behind.rms_gamma,
         .rms_eps = behind.rms_eps,
         .weight_bias = behind.weight_bias,
         .residual_out = residual_out.data(),
         .norm_out = norm_out.data()}}
        .call();
  }

  std::int64_t k, hidden;
  Bytes rows, residual, other_residual, gamma, residual_out, norm_out, rounded;
  std::vector<std::int32_t> ids, other_ids, index;
  std::vector<float> weights, other_weights, shared;
  LocalOutput local;
  BehindLayer behind;
};

struct Case {
  std::string owner, field;
  std::function<void(RankEnd&)> alter;
};

std::vector<Case> cases() {
  return {
      {"behind", "residual_in", [](RankEnd& r) { r.behind.residual_in = r.other_residual.data(); }},
      {"behind", "rms_gamma", [](RankEnd& r) { r.behind.rms_gamma = r.residual.data(); }},
      {"behind", "rms_eps", [](RankEnd& r) { r.behind.rms_eps = 2; }},
      {"behind", "weight_bias", [](RankEnd& r) { r.behind.weight_bias = 1; }},
      {"behind", "residual_out", [](RankEnd& r) { r.behind.residual_out = nullptr; }},
      {"behind", "norm_out", [](RankEnd& r) { r.behind.norm_out = nullptr; }},
      {"local", "tokens", [](RankEnd& r) { r.local.tokens = 3; }},
      {"local", "ids", [](RankEnd& r) { r.local.ids = r.other_ids.data(); }},
      {"local", "weights", [](RankEnd& r) { r.local.weights = r.other_weights.data(); }},
      {"local", "factor", [](RankEnd& r) { r.local.factor = 2.5F; }},
      {"local", "shared", [](RankEnd& r) { r.local.shared = nullptr; }}};
}

using Ranks = std::vector<std::unique_ptr<RankEnd>>;

enum class Before { kNothing, kAnotherCall };

/// Every rank's end with a field as the case says; a call may go before it with the fields as they
/// were, of which nothing may stay.
Ranks run(Ending ending, const std::function<void(RankEnd&)>& alter,
          const Problem& problem = make_preset("tiny"), Before before = Before::kNothing) {
  Ranks ranks;
  for (int r = 0; r < kRanks; ++r) ranks.push_back(std::make_unique<RankEnd>(problem, r));
  test::expect_all_well(test::on_thread_ranks(kRanks, test::long_deadlines(), [&](comm::Group& g) {
    RankEnd& mine = *ranks[std::size_t(g.rank())];
    FusedEnd end(g, problem,
                 {.ending = ending, .capacity = kTokens, .held = kHeld, .dtype = kDtype});
    if (before == Before::kAnotherCall) {
      std::copy(mine.rows.rbegin(), mine.rows.rend(), static_cast<std::uint8_t*>(end.rows()));
      end.finish(mine.local, mine.behind);
      std::ranges::fill(mine.residual_out, 0xcd);
      std::ranges::fill(mine.norm_out, 0xcd);
    }
    alter(mine);
    std::copy(mine.rows.begin(), mine.rows.end(), static_cast<std::uint8_t*>(end.rows()));
    end.finish(mine.local, mine.behind);
  }));
  EXPECT_TRUE(test::same_bits(ranks[0]->residual_out, ranks[1]->residual_out));
  EXPECT_TRUE(test::same_bits(ranks[0]->norm_out, ranks[1]->norm_out));
  return ranks;
}

/// Whether the written rows are the oracle's, to a rounding of the largest addend.
bool near_oracle(RankEnd& got, const ops::AllReduceReference& want, std::int64_t tokens) {
  constexpr double kUlp = 0x1p-7;  // of bf16, relative
  for (std::size_t i = 0; i < std::size_t(tokens * got.hidden); ++i) {
    const double p = load_element(kDtype, got.residual_out.data(), std::int64_t(i)),
                 n = load_element(kDtype, got.norm_out.data(), std::int64_t(i));
    if (!(std::fabs(p - want.residual[i]) <= kUlp * want.residual_size[i])) return false;
    if (!(std::fabs(n - want.norm[i]) <= kUlp * std::fabs(want.norm[i]))) return false;
  }
  return true;
}

ops::AllReduceReference reference_of(Ranks& ranks) {
  const RankEnd& written = *ranks[0];
  std::vector<ops::AllReduceCall> calls;
  for (auto& r : ranks) calls.push_back(r->oracle_call());
  std::vector<double> residual;  // the norm is taken of what the rank wrote
  for (std::int64_t i = 0; i < calls[0].shape.tokens * written.hidden; ++i)
    residual.push_back(load_element(kDtype, written.residual_out.data(), i));
  return ops::allreduce_norm_ref(calls, &residual);
}

TEST(FusedEndFields, EachChangesTheOutputsAsInTheOracle) {
  for (Ending ending : {Ending::kFused, Ending::kReduce}) {
    Ranks base = run(ending, [](RankEnd&) {});
    EXPECT_TRUE(near_oracle(*base[0], reference_of(base), kTokens));
    for (const Case& c : cases()) {
      SCOPED_TRACE(c.owner + "." + c.field);
      Ranks got = run(ending, c.alter);
      EXPECT_FALSE(test::same_bits(got[0]->residual_out, base[0]->residual_out) &&
                   test::same_bits(got[0]->norm_out, base[0]->norm_out));
      if (c.field == "residual_out" || c.field == "norm_out") {
        const bool residual = c.field == "norm_out";  // the other one is as it was
        EXPECT_TRUE(test::same_bits(residual ? got[0]->residual_out : got[0]->norm_out,
                                    residual ? base[0]->residual_out : base[0]->norm_out));
        continue;
      }
      const std::int64_t tokens = got[0]->local.tokens;
      EXPECT_TRUE(near_oracle(*got[0], reference_of(got), tokens));
      // A control: the oracle of the base is not what is written now.
      if (tokens == kTokens) {
        EXPECT_FALSE(near_oracle(*got[0], reference_of(base), tokens));
      }
    }
  }
}

// A call leaves nothing to the next one, whichever field differs: no index, row, scale or shard.
TEST(FusedEndFields, ACallKnowsNothingOfTheOneBefore) {
  const Problem problem = make_preset("tiny");
  for (Ending ending : {Ending::kFused, Ending::kReduce})
    for (const Case& c : cases()) {
      SCOPED_TRACE(c.owner + "." + c.field);
      const Ranks first = run(ending, c.alter, problem);
      const Ranks second = run(ending, c.alter, problem, Before::kAnotherCall);
      EXPECT_TRUE(test::same_bits(second[0]->residual_out, first[0]->residual_out));
      EXPECT_TRUE(test::same_bits(second[0]->norm_out, first[0]->norm_out));
    }
}

// Weights on the input are in the experts' rows already; a zero expert's row is the token, which
// its weight multiplies here.
TEST(FusedEndFields, WeightsOnTheInputWeighZeroExpertsOnly) {
  Problem on_output = make_preset("tiny");
  on_output.routing.zero_experts = 2;
  Problem on_input = on_output;
  on_input.routing.placement = WeightPlacement::kInput;
  const auto choose_zeros = [](RankEnd& r) {
    for (std::size_t i = 1; i < r.ids.size(); i += 3)
      if (r.ids[i] >= 0) r.ids[i] = std::int32_t(kHeld + i % 2);
  };
  const auto weigh_zeros_only = [&](RankEnd& r) {
    choose_zeros(r);
    for (std::size_t i = 0; i < r.ids.size(); ++i)
      if (r.ids[i] >= 0 && r.ids[i] < kHeld) r.weights[i] = 1;
  };
  Ranks got = run(Ending::kFused, choose_zeros, on_input);
  Ranks want = run(Ending::kFused, weigh_zeros_only, on_output);
  EXPECT_TRUE(near_oracle(*want[0], reference_of(want), kTokens));
  EXPECT_TRUE(test::same_bits(got[0]->residual_out, want[0]->residual_out));
  EXPECT_TRUE(test::same_bits(got[0]->norm_out, want[0]->norm_out));
  EXPECT_FALSE(near_oracle(*got[0], reference_of(got), kTokens)) << "the control: all are weighed";
}

TEST(FusedEndFields, NoneIsWithoutACase) {
  std::map<std::string, std::set<std::string>> named;
  for (const Case& c : cases()) named[c.owner].insert(c.field);
  EXPECT_EQ(int(named["behind"].size()), fields_of<BehindLayer>());
  EXPECT_EQ(int(named["local"].size()), fields_of<LocalOutput>());
}

}  // namespace
}  // namespace switchyard::layer
