// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>

#include "switchyard/api/judge.h"
#include "switchyard/api/judge_support.h"
#include "switchyard/base/check.h"
#include "switchyard/base/random.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/core/preset.h"
#include "switchyard/layer/judge.h"
#include "switchyard/layer/single_rank.h"
#include "switchyard/tune/roof.h"
#include "switchyard/tune/timer.h"

namespace switchyard {
namespace {

constexpr std::int64_t kCheckedTokens = 8;
constexpr int kMinCalls = 5, kMaxCalls = 200;
constexpr double kBudgetUs = 1.5e6;

/// Seeded logits whose top k follow the asked skew: Gumbel noise plus an expert's log popularity.
class LogitSource {
 public:
  LogitSource(const RunOptions& o, std::int64_t experts) : o_(o), experts_(experts) {}

  /// [tokens, experts]; each call's are its own.
  void fill(std::int64_t call, std::vector<float>& out) const {
    const Random random(o_.seed, 1000 + std::uint64_t(call));
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::int64_t e = std::int64_t(i) % experts_;
      const float u = std::max(random.uniform(i), 0x1p-24f);
      const float gumbel = -std::log(-std::log(u * (1 - 0x1p-23f)));
      out[i] = o_.routing == RoutingSkew::kOne ? -float(e) : gumbel + popularity(e);
    }
  }

 private:
  float popularity(std::int64_t e) const {
    return o_.routing == RoutingSkew::kZipf ? -std::log(float(e + 1)) : 0.0f;
  }

  const RunOptions& o_;
  std::int64_t experts_;
};

/// One layer under test with its buffers; forward() is what gets timed.
class Bench {
 public:
  Bench(const MoeLayer& layer, const RunOptions& o)
      : layer_(layer),
        o_(o),
        p_(layer.problem()),
        experts_(p_.num_experts() + p_.routing.zero_experts),
        source_(o, experts_),
        logits_(std::size_t(o.tokens * experts_)),
        ids_(std::size_t(o.tokens * p_.top_k())),
        hidden_(random_tokens(o.tokens, p_.hidden, o.seed)),
        token_ids_(std::size_t(o.tokens)),
        workspace_(layer.workspace_bytes(o.tokens)) {
    const Dtype dtype = p_.dtype;
    typed_.resize(hidden_.size() * size_of(dtype));
    out_.resize(typed_.size());
    for (std::size_t i = 0; i < hidden_.size(); ++i)
      store_element(dtype, typed_.data(), std::int64_t(i), hidden_[i]);
  }

  void prepare(std::int64_t call) {
    source_.fill(call, logits_);
    const std::int64_t vocab = layer_.impl().weights().router.vocab;
    const Random random(o_.seed, 9000 + std::uint64_t(call));
    for (std::size_t t = 0; t < token_ids_.size(); ++t)
      token_ids_[t] = vocab > 0 ? std::int64_t(random.bits(t) % std::uint64_t(vocab)) : 0;
    std::fill(out_.begin(), out_.end(), std::byte(0xff));
  }

  double forward() {
    const ForwardArgs f = args();
    const double start = tune::now_us();
    layer_.forward(f);
    return tune::now_us() - start;
  }

  /// The router's own GEMM and choice, from the hidden states.
  double route() {
    ForwardArgs f = args();
    f.logits = {};
    std::vector<float> weights(ids_.size());
    layer::Routed routed{ids_, weights, p_.top_k(), 1};
    const double start = tune::now_us();
    layer::route_tokens(layer_.impl(), f, p_.dtype, logits_, routed);
    return tune::now_us() - start;
  }

  std::int64_t distinct_experts() const {
    std::set<std::int32_t> distinct(ids_.begin(), ids_.end());
    distinct.erase(distinct.lower_bound(std::int32_t(p_.num_experts())), distinct.end());
    return std::int64_t(distinct.size());
  }

  /// Judges up to kCheckedTokens tokens spread over the batch, and that alone they have the same
  /// bits.
  layer::Judgement check(std::int64_t& checked, bool& same_bits) const {
    checked = std::min(o_.tokens, kCheckedTokens);
    const std::int64_t h = p_.hidden;
    std::vector<float> hidden, logits;
    std::vector<std::int64_t> token_ids, picked;
    for (std::int64_t i = 0; i < checked; ++i) {
      const std::int64_t t = i * o_.tokens / checked;
      picked.push_back(t);
      hidden.insert(hidden.end(), hidden_.begin() + t * h, hidden_.begin() + (t + 1) * h);
      logits.insert(logits.end(), logits_.begin() + t * experts_,
                    logits_.begin() + (t + 1) * experts_);
      token_ids.push_back(token_ids_[std::size_t(t)]);
    }
    layer::Judgement j = layer::judge(
        layer_.impl(),
        {checked, hidden.data(), token_ids.data(), {logits.data(), checked, experts_, experts_}});
    same_bits = true;
    for (std::int64_t i = 0; i < checked * h; ++i) {
      const std::int64_t at = picked[std::size_t(i / h)] * h + i % h;
      same_bits =
          same_bits && double(load_element(p_.dtype, out_.data(), at)) == j.out[std::size_t(i)];
    }
    return j;
  }

 private:
  ForwardArgs args() {
    ForwardArgs f;
    f.tokens = o_.tokens;
    f.hidden = typed_.data();
    f.hidden_stride = f.out_stride = p_.hidden;
    f.logits = {logits_.data(), o_.tokens, experts_, experts_};
    f.token_ids = token_ids_.data();
    f.out = out_.data();
    f.ids_out = ids_.data();
    f.workspace = workspace_.bytes();
    return f;
  }

  const MoeLayer& layer_;
  const RunOptions& o_;
  const Problem& p_;
  std::int64_t experts_;
  LogitSource source_;
  std::vector<float> logits_;
  std::vector<std::int32_t> ids_;
  std::vector<float> hidden_;
  std::vector<std::int64_t> token_ids_;
  HostBuffer workspace_;
  std::vector<std::byte> typed_, out_;
};

void time_calls(Bench& bench, const MoeLayer& layer, Measurement& m) {
  std::vector<double> times, router, distinct;
  double spent = 0;
  bench.prepare(0);
  bench.forward();  // the first call touches fresh pages
  for (int call = 1; call <= kMaxCalls && (call <= kMinCalls || spent < kBudgetUs); ++call) {
    bench.prepare(call);
    times.push_back(bench.forward());
    distinct.push_back(double(bench.distinct_experts()));
    spent += times.back();
  }
  for (int call = 0; call < kMinCalls; ++call) router.push_back(bench.route());
  const Problem& p = layer.problem();
  m.calls = std::int64_t(times.size());
  m.time_p50 = tune::percentile(times, 0.5);
  m.time_p90 = tune::percentile(times, 0.9);
  m.time_p99 = tune::percentile(times, 0.99);
  m.router_time_p50 = tune::percentile(router, 0.5);
  m.distinct_experts = std::int64_t(tune::percentile(distinct, 0.5));
  const double projections = p.gated() ? 3 : 2;
  const double flops = 2 * projections * double(p.expert_hidden()) * double(p.inter) *
                       double(p.top_k()) * double(m.tokens);
  m.gbps = double(m.distinct_experts) * double(layer.expert_stored_bytes()) / m.time_p50 * 1e-3;
  m.gflops = flops / m.time_p50 * 1e-3;
  const tune::Roof roof =
      tune::measure_roof(*layer.impl().options().pool, layer.impl().options().isa,
                         layer.impl().routed().packed.bytes());
  m.roof_gbps = roof.gbps;
  m.roof_gflops = roof.gflops;
  m.share_of_roof = std::max(m.gbps / roof.gbps, m.gflops / roof.gflops);
}

void describe(const MoeLayer& layer, const RunOptions& o, Measurement& m) {
  m.checkpoint = o.checkpoint;
  m.preset = o.checkpoint.empty() ? o.preset : "";
  m.layer = layer.impl().weights().layer;
  m.format = layer.problem().format;
  m.activations = std::string(to_string(layer.problem().activations));
  m.leaf = layer.leaf();
  m.device = std::string(to_string(layer.impl().options().leaf->device));
  m.parallel = std::string(to_string(o.build.parallel.value_or(Parallel::kTtp)));
  m.strategy = "none";
  m.tokens = o.tokens;
  m.notices = layer.notices();
}

Measurement measure(const MoeLayer& layer, const RunOptions& o) {
  Measurement m;
  describe(layer, o, m);
  m.budget = layer::budgets_of(layer.impl().routed().shape.quant).oracle;
  m.ok = true;
  if (o.tokens == 0) return m;
  Bench bench(layer, o);
  time_calls(bench, layer, m);
  bench.prepare(0);
  bench.forward();
  bool same_bits = false;
  const layer::Judgement j = bench.check(m.checked_tokens, same_bits);
  m.rel_l2 = j.rel_l2_oracle;
  m.ok = same_bits && j.ok(layer::budgets_of(layer.impl().routed().shape.quant));
  if (!same_bits) m.notices.push_back("a token alone has other bits than in the batch");
  return m;
}

BuildOptions build_options(const RunOptions& o, std::int64_t layer, std::int64_t hidden) {
  BuildOptions build = o.build;
  if (!o.calibrate.empty()) build.calibration = read_calibration(o.calibrate, layer, hidden);
  return build;
}

}  // namespace

RunResult run(const RunOptions& o) {
  require(o.tokens >= 0, "run: tokens = ", o.tokens, " is negative");
  RunResult result;
  if (o.checkpoint.empty()) {
    require(!o.layer, "run: --layer belongs to a checkpoint; a preset is one layer");
    const std::int64_t hidden = make_preset(o.preset).hidden;
    result.measurements.push_back(
        measure(MoeLayer::from_preset(o.preset, build_options(o, 0, hidden)), o));
  } else {
    const Checkpoint checkpoint = Checkpoint::open(o.checkpoint);
    result.notices = checkpoint.impl().notices();
    for (const LayerEntry& entry : chosen_layers(checkpoint, o.layer))
      result.measurements.push_back(
          measure(MoeLayer::from_checkpoint(checkpoint, entry.index,
                                            build_options(o, entry.index, entry.hidden)),
                  o));
  }
  result.ok = std::all_of(result.measurements.begin(), result.measurements.end(),
                          [](const Measurement& m) { return m.ok; });
  return result;
}

}  // namespace switchyard
