// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <optional>

#include "switchyard/api/bench.h"
#include "switchyard/api/bench_bars.h"
#include "switchyard/api/judge_support.h"
#include "switchyard/api/layer_call.h"
#include "switchyard/api/machine.h"
#include "switchyard/base/check.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/core/preset.h"
#include "switchyard/layer/judge.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/tune/roof.h"
#include "switchyard/tune/timer.h"

namespace switchyard {
namespace {

constexpr std::int64_t kMiB = std::int64_t(1) << 20;
constexpr int kMinCalls = 5, kMaxCalls = 500, kRouterCalls = 5, kEdgeSamples = 5, kRowSamples = 2;

/// The rates of this machine and the buffer that pushes a layer out of its caches.
class Session {
 public:
  explicit Session(int threads)
      : env_(environment()),
        pool_(threads > 0 ? threads : std::clamp(env_.num_cpus, 1, 1024)),
        buffer_(buffer_size(env_)),
        meter_(pool_, running_tier(env_), touched(buffer_)),
        flusher_(pool_, running_tier(env_), buffer_.bytes().first(flush_size(env_))) {
    meter_.sample(kEdgeSamples);
  }

  const Environment& env() const { return env_; }
  void sample() { meter_.sample(kRowSamples); }
  void flush() { flusher_.flush(); }

  void finish(BenchLayerResult& out) {
    meter_.sample(kEdgeSamples);
    const auto copy = [](const tune::Roof& r) { return MeasuredRoof{r.gbps, r.gflops}; };
    out.roof = copy(meter_.roof());
    out.roof_start = copy(meter_.early(kEdgeSamples));
    out.roof_end = copy(meter_.late(kEdgeSamples));
    out.roof_samples = meter_.samples();
    out.flush_bytes = std::int64_t(flush_size(env_));
  }

 private:
  // A second look at a smaller buffer would partly find it in the cache; more than an eighth of the
  // memory is not ours to take.
  static std::size_t buffer_size(const Environment& env) {
    const std::int64_t most = std::max(64 * kMiB, env.memory_bytes / 8);
    return std::size_t(std::min(std::max(512 * kMiB, 4 * env.l3_bytes), most) / kMiB * kMiB);
  }
  static std::size_t flush_size(const Environment& env) {
    const std::int64_t twice = std::max(64 * kMiB, 2 * env.l3_bytes) / kMiB * kMiB;
    return std::min(buffer_size(env), std::size_t(twice));
  }
  // Untouched pages are all the same zero page, which no cache feels.
  static std::span<const std::byte> touched(HostBuffer& buffer) {
    std::fill(buffer.bytes().begin(), buffer.bytes().end(), std::byte(1));
    return buffer.bytes();
  }

  Environment env_;
  ThreadPool pool_;
  HostBuffer buffer_;
  tune::RoofMeter meter_, flusher_;
};

TimeSummary summarise(const std::vector<double>& times) {
  return {.p50 = tune::percentile(times, 0.5),
          .p90 = tune::percentile(times, 0.9),
          .p99 = tune::percentile(times, 0.99),
          .least = *std::min_element(times.begin(), times.end()),
          .samples = std::int64_t(times.size())};
}

/// Makes calls until the seconds are spent; `next` runs before each and is not timed.
template <class Next>
CacheState time_state(LayerCall& call, double seconds, Next&& next) {
  std::vector<double> times, distinct;
  const double begin = tune::now_us();
  while (int(times.size()) < kMaxCalls &&
         (int(times.size()) < kMinCalls || tune::now_us() - begin < seconds * 1e6)) {
    next(std::int64_t(times.size()) + 1);
    times.push_back(call.forward());
    distinct.push_back(double(call.distinct_experts()));
  }
  return {.time = summarise(times),
          .distinct_experts = std::int64_t(tune::percentile(distinct, 0.5))};
}

/// One built layer.
class LayerBench {
 public:
  LayerBench(const MoeLayer& layer, const BenchLayerOptions& o, Session& session)
      : layer_(layer), o_(o), session_(session) {}

  BenchLayerRow row(std::int64_t tokens, RoutingSkew routing) {
    BenchLayerRow r = described(tokens, routing);
    LayerCall call(layer_, {tokens, routing, o_.source.seed});
    check(call, r);
    r.cold = time_state(call, o_.seconds, [&](std::int64_t i) {
      session_.flush();
      call.prepare(i);
    });
    call.prepare(1);
    call.forward();  // what the cold calls left behind is not warm
    r.warm = time_state(call, o_.seconds, [](std::int64_t) {});
    std::vector<double> router;
    for (int i = 0; i < kRouterCalls; ++i) router.push_back(call.route());
    r.router_p50 = tune::percentile(router, 0.5);
    return r;
  }

 private:
  BenchLayerRow described(std::int64_t tokens, RoutingSkew routing) const {
    BenchLayerRow r;
    r.checkpoint = o_.source.checkpoint;
    r.preset = r.checkpoint.empty() ? o_.source.preset : "";
    r.layer = layer_.impl().weights().layer;
    r.format = layer_.problem().format;
    r.activations = std::string(to_string(layer_.problem().activations));
    r.leaf = layer_.leaf();
    r.device = std::string(to_string(layer_.impl().options().leaf->device));
    r.isa = std::string(to_string(running_tier(session_.env())));
    r.routing = routing;
    r.threads = layer_.threads();
    r.tokens = tokens;
    r.expert_bytes = layer_.expert_stored_bytes();
    r.packed_bytes = layer_.packed_bytes();
    r.flops = layer_flops(layer_.problem(), tokens);
    r.budget = layer::budgets_of(layer_.impl().routed().shape.quant).oracle;
    r.notices = layer_.notices();
    return r;
  }

  /// The first call touches fresh pages, so it is the one that is judged.
  void check(LayerCall& call, BenchLayerRow& r) const {
    call.prepare(0);
    call.forward();
    bool same_bits = false;
    const layer::Judgement j = call.check(r.checked_tokens, same_bits);
    r.rel_l2 = j.rel_l2_oracle;
    r.ok = same_bits && j.ok(layer::budgets_of(layer_.impl().routed().shape.quant));
    if (!same_bits) r.notices.push_back("a token alone has other bits than in the batch");
  }

  const MoeLayer& layer_;
  const BenchLayerOptions& o_;
  Session& session_;
};

/// Where the layers come from; each is built anew for each format.
class Source {
 public:
  explicit Source(const RunOptions& o) : o_(o) {
    if (o.checkpoint.empty()) {
      require(!o.layer, "bench layer: --layer belongs to a checkpoint; a preset is one layer");
      layers_ = {{0, make_preset(o.preset).hidden}};
      return;
    }
    checkpoint_ = std::make_unique<Checkpoint>(Checkpoint::open(o.checkpoint));
    for (const LayerEntry& entry : chosen_layers(*checkpoint_, o.layer))
      layers_.push_back({entry.index, entry.hidden});
  }

  struct Entry {
    std::int64_t index, hidden;
  };
  const std::vector<Entry>& layers() const { return layers_; }
  std::vector<std::string> notices() const {
    return checkpoint_ ? checkpoint_->impl().notices() : std::vector<std::string>();
  }

  MoeLayer build(const Entry& entry, const std::string& format) const {
    BuildOptions build = o_.build;
    if (!format.empty()) build.format = format;
    if (!o_.calibrate.empty())
      build.calibration = read_calibration(o_.calibrate, entry.index, entry.hidden);
    return checkpoint_ ? MoeLayer::from_checkpoint(*checkpoint_, entry.index, build)
                       : MoeLayer::from_preset(o_.preset, build);
  }

 private:
  RunOptions o_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<Entry> layers_;
};

void finish_state(const BenchLayerRow& r, const LayerCost& cost, const tune::Roof& roof,
                  CacheState& s) {
  s.gbps = cost.bytes / s.time.p50 * 1e-3;
  s.gflops = cost.flops / s.time.p50 * 1e-3;
  s.share_of_roof = floor_us(cost, roof) / s.time.p50;
  ensure(r.tokens > 0 && s.time.samples > 0, "a row without samples");
}

/// Rates and shares wait for the roof, which is complete only at the end.
void finish_row(const MeasuredRoof& measured, BenchLayerRow& r) {
  const tune::Roof roof{measured.gbps, measured.gflops};
  const auto cost = [&](const CacheState& s) {
    return LayerCost{double(s.distinct_experts) * double(r.expert_bytes), r.flops};
  };
  finish_state(r, cost(r.cold), roof, r.cold);
  finish_state(r, cost(r.warm), roof, r.warm);
  if (r.routing == RoutingSkew::kUniform && r.activations == "format")
    r.bar = bar_of(r.preset, r.format, r.tokens, cost(r.cold));
}

void check_options(const BenchLayerOptions& o) {
  require(!o.tokens.empty() && !o.routing.empty(),
          "bench layer: no tokens or no routing is given; name at least one of each");
  for (std::int64_t tokens : o.tokens)
    require(tokens >= 1, "bench layer: tokens = ", tokens, "; a call of none has no time to take");
  require(o.seconds > 0 && o.seconds <= 3600, "bench layer: seconds = ", o.seconds,
          " is outside 0..3600");
  for (const std::string& format : o.formats) leaves::to_format(format);
}

void say(const BenchLayerOptions& o, const std::string& what) {
  if (o.progress) o.progress(what);
}

/// All rows of one layer in one format; the layer is freed on return.
void time_format(const Source& source, const Source::Entry& entry, const std::string& format,
                 std::optional<Session>& session, const BenchLayerOptions& o,
                 BenchLayerResult& out) {
  say(o, cat("building layer ", entry.index, format.empty() ? "" : " in ", format));
  const MoeLayer layer = source.build(entry, format);
  if (!session) session.emplace(o.source.build.threads);  // a mistake answers before it measures
  for (std::int64_t tokens : o.tokens)
    for (RoutingSkew routing : o.routing) {
      say(o, cat(show_format(layer.problem().format), ", ", tokens, " tokens"));
      out.rows.push_back(LayerBench(layer, o, *session).row(tokens, routing));
      session->sample();
    }
}

}  // namespace

const BenchRules& bench_rules() {
  static constexpr BenchRules rules{
      .cold =
          "fresh routing for every call, after every thread has read other memory of twice the "
          "last-level cache: neither weights nor workspace are in any cache",
      .warm = "the same routing in call after call, nothing in between",
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
          "0.9 quantile of samples taken before, between and after the rows: one stream per "
          "thread over more than the caches, and the tier's widest dot product in registers",
      .bar =
          "share of the roof that the cold p50 is held to; one that was set in ms on another "
          "machine is carried over by its share of that machine's roof"};
  return rules;
}

BenchLayerResult bench_layer(const BenchLayerOptions& o) {
  check_options(o);
  const Source source(o.source);
  BenchLayerResult out;
  out.notices = source.notices();
  std::optional<Session> session;
  std::vector<std::string> formats = o.formats;
  if (formats.empty()) formats.push_back(o.source.build.format.value_or(""));
  for (const Source::Entry& entry : source.layers())
    for (const std::string& format : formats) {
      try {
        time_format(source, entry, format, session, o, out);
      } catch (const Error& e) {
        if (formats.size() == 1 || dynamic_cast<const InternalError*>(&e) != nullptr) throw;
        out.skipped.push_back({entry.index, format, e.what()});
      }
    }
  if (out.rows.empty())
    throw UsageError(cat("no format can be built; the first says: ", out.skipped.front().reason));
  session->finish(out);
  for (BenchLayerRow& row : out.rows) finish_row(out.roof, row);
  out.ok = std::all_of(out.rows.begin(), out.rows.end(), [](const auto& r) { return r.ok; });
  return out;
}

}  // namespace switchyard
