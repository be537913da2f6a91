// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/bench_routing.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "switchyard/api/device_routing.h"
#include "switchyard/api/judge_support.h"
#include "switchyard/api/machine.h"
#include "switchyard/api/time_summary.h"
#include "switchyard/base/check.h"
#include "switchyard/base/random.h"
#include "switchyard/core/preset.h"
#include "switchyard/layer/oracle.h"
#include "switchyard/ops/route/route.h"
#include "switchyard/ops/route/router_gemm.h"
#include "switchyard/tune/timer.h"

namespace switchyard {
namespace {

using Method = RoutingMethodType;

constexpr std::int64_t kCheckedTokens = 64, kVocab = 1000;
constexpr int kBatches = 4, kMinCalls = 5, kMaxCalls = 2000;

/// What runs the steps.
struct Runner {
  Device device;
  ThreadPool* pool;  // of the CPU
};

template <class F>
double time_of(F&& f) {
  const double start = tune::now_us();
  f();
  return tune::now_us() - start;
}

/// Calls f(i), which says what a call took, until the seconds are spent.
template <class F>
TimeSummary time_calls(double seconds, F&& f) {
  std::vector<double> times;
  const double begin = tune::now_us();
  f(0);  // fresh pages
  for (int i = 1; i <= kMaxCalls && (i <= kMinCalls || tune::now_us() - begin < seconds * 1e6); ++i)
    times.push_back(f(i));
  return summary_of(times);
}

std::vector<float> normals(std::uint64_t seed, std::uint64_t stream, std::int64_t count,
                           float size) {
  const Random random(seed, stream);
  std::vector<float> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(size * random.normal(std::uint64_t(i)));
  return out;
}

/// Batches of logits over the shape's experts, and all that a method may read beside them.
class Traffic {
 public:
  Traffic(const BenchRoutingOptions& o, const Problem& p, std::int64_t tokens)
      : hidden_(p.hidden), experts_(p.num_experts()) {
    const float size = 1 / std::sqrt(float(hidden_));
    weight_ = normals(o.seed, 1, experts_ * hidden_, size);
    choice_bias_ = normals(o.seed, 2, experts_, 0.1f);
    for (int b = 0; b < kBatches; ++b) {
      x_.push_back(random_tokens(tokens, hidden_, o.seed + std::uint64_t(b)));
      logits_.emplace_back(std::size_t(tokens * experts_));
    }
    const Random random(o.seed, 3);
    for (std::int64_t t = 0; t < tokens; ++t)
      token_ids_.push_back(std::int64_t(random.bits(std::uint64_t(t)) % kVocab));
  }

  ops::RouterGemmArgs gemm(std::int64_t batch, std::int64_t tokens, std::vector<float>& logits) {
    return {.dtype = Dtype::kF32,
            .x = x_[std::size_t(batch % kBatches)].data(),
            .x_stride = hidden_,
            .hidden = hidden_,
            .weight = weight_.data(),
            .isa = isa_,
            .logits = {logits.data(), tokens, experts_, experts_}};
  }
  std::vector<float>& logits(std::int64_t batch) { return logits_[std::size_t(batch % kBatches)]; }

  ops::RouteArgs route(const RoutingSpec& spec, std::int64_t batch, std::int64_t tokens,
                       std::vector<std::int32_t>& ids, std::vector<float>& weights) {
    if (spec.choice == ChoiceRule::kHash) fill_table(spec.top_k);
    ids.resize(std::size_t(tokens * spec.top_k));
    weights.resize(ids.size());
    return {.logits = {logits(batch).data(), tokens, experts_, experts_},
            .spec = &spec,
            .choice_bias = spec.choice_bias ? choice_bias_.data() : nullptr,
            .hash_table = spec.choice == ChoiceRule::kHash ? table_.data() : nullptr,
            .vocab = kVocab,
            .token_ids = token_ids_.data(),
            .ids = {ids.data(), tokens, spec.top_k, spec.top_k},
            .weights = {weights.data(), tokens, spec.top_k, spec.top_k}};
  }

 private:
  void fill_table(std::int64_t k) {
    table_.resize(std::size_t(kVocab * k));
    for (std::int64_t i = 0; i < kVocab * k; ++i)  // k neighbours: distinct ids in each row
      table_[std::size_t(i)] = std::int32_t((i / k * 7 + i % k) % experts_);
  }

  std::int64_t hidden_, experts_;
  CpuIsa isa_ = running_tier(environment());
  std::vector<float> weight_, choice_bias_;
  std::vector<std::vector<float>> x_, logits_;
  std::vector<std::int64_t> token_ids_;
  std::vector<std::int32_t> table_;
};

RouterGemmRow time_gemm(const BenchRoutingOptions& o, Traffic& traffic, std::int64_t tokens,
                        const Runner& runner) {
  RouterGemmRow row;
  row.tokens = tokens;
  std::vector<ops::RouterGemmArgs> calls;
  for (int b = 0; b < kBatches; ++b) calls.push_back(traffic.gemm(b, tokens, traffic.logits(b)));
  if (runner.device == Device::kCuda) {
    DeviceRouting device{std::span<const ops::RouterGemmArgs>(calls)};
    row.time = time_calls(o.seconds, [&](std::int64_t) { return device.run(); });
    device.fetch_logits(calls);
  } else {
    row.time = time_calls(o.seconds, [&](std::int64_t i) {
      return time_of([&] { ops::router_gemm_cpu(calls[std::size_t(i % kBatches)], *runner.pool); });
    });
    for (const ops::RouterGemmArgs& a : calls)  // all are needed, however few calls fitted
      ops::router_gemm_cpu(a, *runner.pool);
  }
  const std::int64_t checked = std::min(tokens, kCheckedTokens);
  std::vector<float> naive(traffic.logits(0).size(), std::nanf(""));
  const double us = time_of([&] { ops::router_gemm_ref(traffic.gemm(0, checked, naive)); });
  const ops::RouterGemmArgs g = traffic.gemm(0, checked, naive);
  const auto judged = std::size_t(checked * g.logits.cols);
  row.max_error =
      largest_distance(std::span(naive).first(judged), std::span(traffic.logits(0)).first(judged));
  row.ns_per_token = row.time.p50 * 1e3 / double(tokens);
  row.naive_ns_per_token = us * 1e3 / double(checked);
  row.gbps = double(g.logits.cols) * double(g.hidden) * 4 / row.time.p50 * 1e-3;
  return row;
}

/// Compares the ids of batch 0 with the oracle's where the choice was not close.
void check_ids(Traffic& traffic, const RoutingSpec& spec, const std::vector<std::int32_t>& ids,
               const std::vector<float>& weights, RouteChoiceRow& row) {
  row.checked = std::min(row.tokens, kCheckedTokens);
  std::vector<std::int32_t> naive_ids;
  std::vector<float> naive_weights;
  const ops::RouteArgs args = traffic.route(spec, 0, row.checked, naive_ids, naive_weights);
  row.naive_ns_per_token = time_of([&] { ops::route_ref(args); }) * 1e3 / double(row.checked);
  std::vector<double> gaps(std::size_t(row.checked));
  ops::route_gaps(args, gaps.data());
  for (std::int64_t t = 0; t < row.checked; ++t) {
    const auto begin = std::size_t(t * spec.top_k), end = begin + std::size_t(spec.top_k);
    if (std::equal(naive_ids.begin() + std::ptrdiff_t(begin),
                   naive_ids.begin() + std::ptrdiff_t(end), ids.begin() + std::ptrdiff_t(begin))) {
      ++row.agreeing;
      const double error = largest_distance(std::span(weights).subspan(begin, end - begin),
                                            std::span(naive_weights).subspan(begin, end - begin));
      if (!std::isnan(row.max_weight_error) && !(error <= row.max_weight_error))
        row.max_weight_error = error;
    } else {
      ++(gaps[std::size_t(t)] < layer::kNearTie ? row.near_tie : row.differing);
    }
  }
}

RouteChoiceRow time_choice(const BenchRoutingOptions& o, Traffic& traffic, const RoutingSpec& spec,
                           std::int64_t tokens, const Runner& runner) {
  RouteChoiceRow row;
  row.method = spec.method;
  row.tokens = tokens;
  row.top_k = spec.top_k;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  std::vector<ops::RouteArgs> calls;
  for (int b = 0; b < kBatches; ++b) calls.push_back(traffic.route(spec, b, tokens, ids, weights));
  const auto poison = [&] {
    std::fill(ids.begin(), ids.end(), -1);
    std::fill(weights.begin(), weights.end(), std::nanf(""));
  };
  if (runner.device == Device::kCuda) {
    DeviceRouting device{std::span<const ops::RouteArgs>(calls)};
    row.time = time_calls(o.seconds, [&](std::int64_t) { return device.run(); });
    poison();
    device.fetch_choice(calls[0]);
  } else {
    row.time = time_calls(o.seconds, [&](std::int64_t i) {
      return time_of([&] { ops::route_cpu(calls[std::size_t(i % kBatches)], *runner.pool); });
    });
    poison();
    ops::route_cpu(calls[0], *runner.pool);
  }
  row.ns_per_token = row.time.p50 * 1e3 / double(tokens);
  check_ids(traffic, spec, ids, weights, row);
  return row;
}

/// The method at the preset's shape. Two methods fix k themselves; the row says which k was used.
RoutingSpec spec_of(Method method, const Problem& p) {
  if (method == p.routing.method) return p.routing;
  std::int64_t k = p.top_k();
  if (method == Method::kLlama4) k = 1;
  if (method == Method::kSparseMixer) k = 2;
  RoutingSpec spec = make_routing(method, p.num_experts(), k);
  if (method == Method::kLpNorm) spec.p = 2;
  return spec;
}

std::vector<Method> every_method() {
  std::vector<Method> out;
  for (int i = 0; i <= int(Method::kUnspecified); ++i) out.push_back(Method(i));
  return out;
}

std::vector<RoutingSpec> usable_specs(const std::vector<Method>& methods, const Problem& p,
                                      BenchRoutingResult& out) {
  std::vector<RoutingSpec> specs;
  for (Method method : methods) try {
      const RoutingSpec spec = spec_of(method, p);
      require(spec.choice != ChoiceRule::kCaller, "the caller chooses, there is nothing to time");
      spec.check();
      specs.push_back(spec);
    } catch (const UsageError& e) {
      out.skipped.push_back({method, e.what()});
    }
  return specs;
}

}  // namespace

double largest_distance(std::span<const float> a, std::span<const float> b) {
  ensure(a.size() == b.size(), "ranges of ", a.size(), " and ", b.size(), " are compared");
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double distance = std::fabs(double(a[i]) - double(b[i]));
    if (std::isnan(distance)) return distance;
    worst = std::max(worst, distance);
  }
  return worst;
}

BenchRoutingResult bench_routing(const BenchRoutingOptions& o) {
  require(!o.tokens.empty(), "bench routing: no tokens are given; name at least one count");
  for (std::int64_t tokens : o.tokens)
    require(tokens >= 1, "bench routing: tokens = ", tokens, "; a call of none takes no time");
  require(o.seconds > 0 && o.seconds <= 3600, "bench routing: seconds = ", o.seconds,
          "; it must be above 0, at most 3600");
  require(o.threads >= 0 && o.threads <= 1024, "bench routing: threads = ", o.threads,
          " is outside 0..1024; 0 means every CPU");
  const Problem p = make_preset(o.preset);
  const bool cuda = o.device == Device::kCuda;
  if (cuda && environment().num_gpus == 0)
    throw DeviceError(
        "device cuda is pinned, but there is no GPU here (or this build has no CUDA twins); run on "
        "one that has, or use device cpu");
  std::optional<ThreadPool> pool;
  if (!cuda) pool.emplace(o.threads > 0 ? o.threads : std::clamp(environment().num_cpus, 1, 1024));
  const Runner runner{o.device, pool ? &*pool : nullptr};
  BenchRoutingResult out;
  out.preset = o.preset;
  out.hidden = p.hidden;
  out.experts = p.num_experts();
  out.device = o.device;
  out.threads = pool ? pool->size() : 0;
  const std::vector<RoutingSpec> specs =
      usable_specs(o.methods.empty() ? every_method() : o.methods, p, out);
  if (specs.empty())
    throw UsageError(cat("routing method ", to_string(out.skipped.front().method),
                         " cannot be timed at preset ", o.preset, ": ",
                         out.skipped.front().reason));
  for (std::int64_t tokens : o.tokens) {
    if (o.progress) o.progress(cat("routing of ", tokens, " tokens"));
    Traffic traffic(o, p, tokens);
    out.gemm.push_back(time_gemm(o, traffic, tokens, runner));
    for (const RoutingSpec& spec : specs)
      out.choice.push_back(time_choice(o, traffic, spec, tokens, runner));
  }
  const auto ok = [](const auto& row) { return row.ok(); };
  out.ok = std::all_of(out.gemm.begin(), out.gemm.end(), ok) &&
           std::all_of(out.choice.begin(), out.choice.end(), ok);
  return out;
}

}  // namespace switchyard
