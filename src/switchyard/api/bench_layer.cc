// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <exception>
#include <memory>
#include <optional>

#include "switchyard/api/bench.h"
#include "switchyard/api/bench_bars.h"
#include "switchyard/api/bench_session.h"
#include "switchyard/api/judge_support.h"
#include "switchyard/api/layer_builder.h"
#include "switchyard/api/layer_call.h"
#include "switchyard/api/layer_source.h"
#include "switchyard/api/machine.h"
#include "switchyard/api/roof_slices.h"
#include "switchyard/api/time_summary.h"
#include "switchyard/base/check.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/core/preset.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/judge.h"
#include "switchyard/layer/layer.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/tune/roof.h"
#include "switchyard/tune/timer.h"

namespace switchyard {
namespace {

constexpr int kMinCalls = 5, kMaxCalls = 500, kRouterCalls = 5;

/// The calls of one state, in one part or several.
struct Calls {
  const LayerCall& call;
  std::vector<double> times, distinct;

  /// Makes calls until the seconds are spent, what `next` takes included: it runs before each call
  /// and is no part of the call's time. Returns the p50 of these calls.
  template <class Once, class Next>
  double add(int least, double seconds, Once&& once, Next&& next) {
    const double begin = tune::now_us();
    const std::size_t first = times.size();
    for (int made = 0; made < kMaxCalls && (made < least || tune::now_us() - begin < seconds * 1e6);
         ++made) {
      next(std::int64_t(times.size()) + 1);
      times.push_back(once());
      distinct.push_back(double(call.distinct_experts()));
    }
    return tune::percentile({times.begin() + std::ptrdiff_t(first), times.end()}, 0.5);
  }

  CacheState state() const {
    CacheState out;
    out.time = summary_of(times);
    out.distinct_experts = std::int64_t(tune::percentile(distinct, 0.5));
    return out;
  }
};

template <class Once, class Next>
CacheState time_state(const LayerCall& call, double seconds, Once&& once, Next&& next) {
  Calls calls{call, {}, {}};
  calls.add(kMinCalls, seconds, once, next);
  return calls.state();
}

/// As time_state(), in slices with the roof sampled around each: the rate of a shared machine's
/// memory can double from one second to the next.
template <class Once, class Next>
CacheState time_slices(const LayerCall& call, BenchSession& session, double seconds, Once&& once,
                       Next&& next) {
  constexpr int kSlices = 4;
  Calls calls{call, {}, {}};
  std::vector<double> p50;
  std::vector<tune::Roof> samples{session.sample()};
  for (int i = 0; i < kSlices; ++i) {
    p50.push_back(calls.add(kMinCalls / kSlices + 1, seconds / kSlices, once, next));
    samples.push_back(session.sample());
  }
  CacheState out = calls.state();
  out.slices = api::roof_slices(samples, p50);
  return out;
}

/// What makes the layer another one than its preset or checkpoint says.
std::vector<std::string> overrides_of(const BuildOptions& o, bool fused) {
  std::vector<std::string> out;
  if (o.top_k) out.push_back(cat("top_k ", *o.top_k));
  if (o.routed_scaling_factor) out.push_back(cat("factor ", *o.routed_scaling_factor));
  if (!o.with_shared) out.emplace_back("without shared");
  if (o.with_parallel_mlp) out.emplace_back("with parallel mlp");
  if (fused) out.emplace_back("fused shared");
  return out;
}

/// The layer and the copies of it that fresh calls visit in turn, so that no call finds its weights
/// where an earlier one left them.
std::vector<MoeLayer> with_copies(MoeLayer layer, const BenchLayerOptions& o,
                                  const BenchSession& session) {
  const bool turns = o.fresh || (o.eager && layer::on_cuda(layer.impl()));
  const std::int64_t count = turns ? session.layers_for(layer.packed_bytes()) : 1;
  return LayerBuilder::copies(std::move(layer), count);
}

/// One built layer and its copies.
class LayerBench {
 public:
  LayerBench(const std::vector<MoeLayer>& layers, const BenchLayerOptions& o, BenchSession& session)
      : layers_(layers), layer_(layers.front()), o_(o), session_(session) {}

  BenchLayerRow row(std::int64_t tokens, RoutingSkew routing) {
    BenchLayerRow r = described(tokens, routing);
    LayerCall call(layers_, {tokens, routing, o_.source.seed});
    check(call, r);
    if (on_cuda()) {
      time_device(call, r);
    } else {
      time_host(call, r);
    }
    std::vector<double> router;
    for (int i = 0; i < kRouterCalls; ++i) router.push_back(call.route());
    r.router_p50 = tune::percentile(router, 0.5);
    return r;
  }

 private:
  bool on_cuda() const { return layer::on_cuda(layer_.impl()); }

  void time_host(LayerCall& call, BenchLayerRow& r) {
    const auto forward = [&] { return call.forward(); };
    if (o_.fresh)
      r.fresh = time_slices(call, session_, o_.seconds, forward, [&](std::int64_t i) {
        call.use(i);
        call.prepare(i);
      });
    call.use(0);
    if (o_.cold)
      r.cold = time_state(call, o_.seconds, forward, [&](std::int64_t i) {
        session_.flush();
        call.prepare(i);
      });
    if (!o_.warm) return;
    call.prepare(1);
    call.forward();  // what other calls left behind is not warm
    r.warm = time_state(call, o_.seconds, forward, [](std::int64_t) {});
  }

  /// A sample is a graph of several calls, so a new draw of routing is needed for each only.
  void time_device(LayerCall& call, BenchLayerRow& r) {
    const auto draw = [&](std::int64_t i) {
      call.prepare(i);
      call.settle();
    };
    if (o_.fresh)
      r.fresh = time_state(
          call, o_.seconds, [&] { return call.forward(); }, draw);
    const auto stay = [](std::int64_t) {};
    call.prepare(0);
    call.settle();
    if (o_.eager)
      r.eager = time_state(
          call, o_.seconds, [&] { return call.eager(); }, stay);
    if (o_.warm)
      r.warm = time_state(
          call, o_.seconds, [&] { return call.warm(); }, stay);
  }

  BenchLayerRow described(std::int64_t tokens, RoutingSkew routing) const {
    BenchLayerRow r;
    r.checkpoint = o_.source.checkpoint;
    r.preset = r.checkpoint.empty() ? o_.source.preset : "";
    r.layer = layer_.impl().weights().layer;
    r.format = layer_.problem().format;
    r.activations = std::string(to_string(layer_.problem().activations));
    r.overrides = overrides_of(o_.source.build, layer_.impl().options().fuse_shared);
    r.leaf = layer_.leaf();
    r.device = std::string(to_string(layer_.impl().options().leaf->device));
    r.isa = on_cuda() ? cat("sm_", session_.env().sm)
                      : std::string(to_string(running_tier(session_.env())));
    r.routing = routing;
    r.threads = layer_.threads();
    r.tokens = tokens;
    r.expert_bytes = layer_.expert_stored_bytes();
    r.packed_bytes = layer_.packed_bytes();
    r.flops = layer_flops(layer_.problem(), tokens);
    r.budget = layer::budgets_of(layer_.impl()).oracle;
    r.tactics = layer_.tactics(tokens);
    r.routing_launch = layer_.routing_launch(tokens);
    r.notices = layer_.notices();
    r.layers = std::int64_t(layers_.size());
    const std::int64_t mib = (r.layers * r.packed_bytes) >> 20,
                       cache = session_.cache_bytes() >> 20;
    if (o_.fresh && mib < 2 * cache)
      r.notices.push_back(cat("fresh calls visit ", r.layers, " layers of together ", mib,
                              " MiB, less than twice the last-level cache of ", cache,
                              " MiB that the machine reports"));
    return r;
  }

  /// The first call touches fresh pages, so it is the one that is judged.
  void check(LayerCall& call, BenchLayerRow& r) const {
    call.prepare(0);
    call.forward();
    call.settle();
    bool same_bits = false;
    const layer::Judgement j = call.check(r.checked_tokens, same_bits);
    r.rel_l2 = j.rel_l2_oracle;
    r.ok = same_bits && j.ok(layer::budgets_of(layer_.impl()));
    if (!same_bits) r.notices.push_back("a token alone has other bits than in the batch");
  }

  const std::vector<MoeLayer>& layers_;
  const MoeLayer& layer_;
  const BenchLayerOptions& o_;
  BenchSession& session_;
};

void finish_state(const BenchLayerRow& r, const LayerCost& cost, const tune::Roof& roof,
                  CacheState& s) {
  s.gbps = cost.bytes / s.time.p50 * 1e-3;
  s.gflops = cost.flops / s.time.p50 * 1e-3;
  s.share_of_roof = floor_us(cost, roof) / s.time.p50;
  if (!s.slices.empty()) s.share_of_roof = api::median_share(cost, s.slices);
  ensure(r.tokens > 0 && s.time.samples > 0, "a row without samples");
}

/// Rates and shares wait for the roof, which is complete only at the end.
void finish_row(const MeasuredRoof& measured, BenchLayerRow& r) {
  const tune::Roof roof{measured.gbps, measured.gflops};
  const auto cost = [&](const CacheState& s) {
    return LayerCost{double(s.distinct_experts) * double(r.expert_bytes), r.flops};
  };
  for (std::optional<CacheState>* s : {&r.fresh, &r.cold, &r.warm, &r.eager})
    if (*s) finish_state(r, cost(**s), roof, **s);
  if (!r.fresh || r.routing != RoutingSkew::kUniform || r.activations != "format") return;
  const Barred what{to_device(r.device), r.preset, r.format, r.overrides,
                    r.isa == to_string(CpuIsa::kAmx) ? CpuIsa::kAmx : CpuIsa::kAvx512};
  r.bar = bar_of(what, r.tokens, cost(*r.fresh), roof);
}

void check_options(const BenchLayerOptions& o) {
  require(!o.tokens.empty() && !o.routing.empty(),
          "bench layer: no tokens or no routing is given; name at least one of each");
  for (std::int64_t tokens : o.tokens)
    require(tokens >= 1, "bench layer: tokens = ", tokens, "; a call of none has no time to take");
  require(o.seconds > 0 && o.seconds <= 3600, "bench layer: seconds = ", o.seconds,
          "; it must be above 0, at most 3600");
  require(o.fresh || o.cold || o.warm || o.eager,
          "bench layer: no state of the caches is to be timed; ask for fresh, cold, warm or eager");
  for (const std::string& format : o.formats) leaves::to_format(format);
}

/// Builds and times layer after layer.
class Runner {
 public:
  Runner(const BenchLayerOptions& o, BenchLayerResult& out)
      : o_(o), source_(o.source, "bench layer"), out_(out) {
    out_.notices = source_.notices();
  }

  void run(const std::vector<std::string>& formats) {
    for (const LayerSource::Entry& entry : source_.layers())
      for (const std::string& format : formats)
        if (std::optional<MoeLayer> layer = build(entry, format, formats.size() > 1))
          time(std::move(*layer));
    if (out_.rows.empty()) std::rethrow_exception(first_);
    session_->finish(out_);
  }

 private:
  /// The layer; nothing when it is skipped. A device that fails is no property of the format.
  std::optional<MoeLayer> build(const LayerSource::Entry& entry, const std::string& format,
                                bool may_skip) {
    say(cat("building layer ", entry.index, format.empty() ? "" : " in ", format));
    try {
      return source_.build(entry, format);
    } catch (const UsageError& e) {
      if (!may_skip) throw;
      skip(entry, format, e);
    } catch (const CannotServe& e) {
      if (!may_skip) throw;
      skip(entry, format, e);
    }
    return std::nullopt;
  }

  void skip(const LayerSource::Entry& entry, const std::string& format, const Error& why) {
    if (!first_) first_ = std::current_exception();
    out_.skipped.push_back({entry.index, format, why.what(), has_bar(o_, format)});
  }

  /// All rows of one layer in one format.
  void time(MoeLayer built) {
    const Device device = built.impl().options().leaf->device;
    const bool cuda = device == Device::kCuda;
    require(o_.fresh || o_.warm || (cuda ? o_.eager : o_.cold), "bench layer: ",
            cuda ? "cold is timed on the cpu only; on cuda ask for fresh, warm or eager"
                 : "eager is timed on cuda only; on the cpu ask for fresh, cold or warm");
    if (!session_)  // a mistake answers first
      session_ = std::make_unique<BenchSession>(device, o_.source.build.threads);
    const std::vector<MoeLayer> layers = with_copies(std::move(built), o_, *session_);
    for (std::int64_t tokens : o_.tokens)
      for (RoutingSkew routing : o_.routing) {
        say(cat(show_format(layers.front().problem().format), ", ", tokens, " tokens"));
        out_.rows.push_back(LayerBench(layers, o_, *session_).row(tokens, routing));
        session_->sample();
      }
  }

  void say(const std::string& what) const {
    if (o_.progress) o_.progress(what);
  }

  const BenchLayerOptions& o_;
  LayerSource source_;
  BenchLayerResult& out_;
  std::unique_ptr<BenchSession> session_;
  std::exception_ptr first_;
};

}  // namespace

const BenchRules& bench_rules() {
  static constexpr BenchRules rules{
      .fresh =
          "fresh routing for every call on the next of several equal layers, which lie in distinct "
          "memory and hold together twice the last-level cache (a notice says where they do not): "
          "weights come from memory, hidden states and workspace are as the call before left them",
      .cold =
          "fresh routing for every call, after the threads have read other memory of twice the "
          "last-level cache, 64 to 512 MiB: neither weights nor workspace are in any cache",
      .warm = "the same routing in call after call, nothing in between",
      .cuda =
          "on cuda a time is the device's for a CUDA graph of 24 calls (above 64 tokens one for "
          "each "
          "layer and at least 4) divided by their number, each call with routing of its own and on "
          "the next of up to 24 equal layers, which hold together 32 times the L2 cache where half "
          "the memory has room for them; eager: the same calls launched one by "
          "one; warm: the first call as often; cold does not exist, fresh calls are",
      .bytes =
          "GB/s counts the stored bytes of the distinct routed experts touched, scales "
          "included, codes as stored and not as packed",
      .flops =
          "GFLOP/s counts 2 (2 or 3) H I k T of the routed experts; a shared expert is in the "
          "time and not in the count",
      .router =
          "times start from given fp32 logits and include choice, quantisers, experts, shared "
          "expert and finalize; the router's GEMM and choice are timed apart",
      .roof =
          "0.9 quantile of samples taken before, between and after the rows, and for fresh calls "
          "on the CPU, whose share is a median over parts of the calls, what was sampled right "
          "before and after each part: one stream per thread over more than the caches, and the "
          "tier's bf16 dot product in registers (fp32 "
          "below AVX-512), so that integer kernels can pass it; on cuda 1 GiB read by all "
          "multiprocessors, and bf16 wgmma on random data in shared memory",
      .bar =
          "share of the roof that the fresh p50 is held to; one that was set in ms on another "
          "machine is carried over by its share of that machine's roof; those of cuda are times on "
          "one H200, without shared experts; on AMX, whose roof counts tile products, a row of 512 "
          "tokens has none and is compared with AVX-512's"};
  return rules;
}

bool has_bar(const BenchLayerOptions& o, const std::string& format) {
  const BuildOptions& build = o.source.build;
  if (!o.source.checkpoint.empty() || !o.fresh || build.activations != ActivationMode::kFormat ||
      std::find(o.routing.begin(), o.routing.end(), RoutingSkew::kUniform) == o.routing.end())
    return false;
  return std::any_of(o.tokens.begin(), o.tokens.end(), [&](std::int64_t tokens) {
    const std::string name = leaves::to_format(format);
    const Barred what{build.device.value_or(Device::kCpu), o.source.preset, name,
                      overrides_of(build, build.fuse_shared)};
    return bar_of(what, tokens, {1, 1}, {1, 1}).has_value();
  });
}

bool BenchLayerResult::misses_bar() const {
  return std::any_of(rows.begin(), rows.end(), [](const auto& r) { return r.misses_bar(); }) ||
         std::any_of(skipped.begin(), skipped.end(), [](const auto& s) { return s.barred; });
}

BenchLayerResult bench_layer(const BenchLayerOptions& o) {
  check_options(o);
  BenchLayerResult out;
  std::vector<std::string> formats = o.formats;
  if (formats.empty()) formats.push_back(o.source.build.format.value_or(""));
  Runner(o, out).run(formats);
  for (BenchLayerRow& row : out.rows) finish_row(out.roof, row);
  out.ok = std::all_of(out.rows.begin(), out.rows.end(), [](const auto& r) { return r.ok; });
  return out;
}

}  // namespace switchyard
