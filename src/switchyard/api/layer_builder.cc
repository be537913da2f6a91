// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/layer_builder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "switchyard/api/served.h"
#include "switchyard/api/tuning.h"
#include "switchyard/base/check.h"
#include "switchyard/base/random.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/core/shared_fusion.h"
#include "switchyard/layer/convert.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/resolve/json.h"
#include "switchyard/resolve/probe.h"
#include "switchyard/resolve/resolver.h"

namespace switchyard {
namespace {

using checkpoint::LayerWeights;

constexpr std::int64_t kCalibrationTokens = 256;

void drop_shared(LayerWeights& w) {
  if (!w.shared) w.notices.push_back("the shared expert is to be left out, and the layer has none");
  w.shared.reset();
  w.problem.num_shared = 0;
  w.problem.shared_inter = 0;
  w.problem.shared_gate = false;
}

/// The parallel MLP adds to the block's output what a shared expert adds.
void join_parallel_mlp(LayerWeights& w) {
  for (const std::string& notice : w.notices)
    require(!notice.starts_with(checkpoint::kUnreadMlp), "with_parallel_mlp is set and layer ",
            w.layer, " cannot have it: ", notice);
  require(w.parallel_mlp.has_value(), "with_parallel_mlp is set and layer ", w.layer,
          " has no MLP beside its MoE block, as Granite's shared_mlp is one; leave it out");
  require(!w.shared, "with_parallel_mlp is set and layer ", w.layer,
          " has a shared expert of its own; leave one of the two out");
  w.shared = std::move(w.parallel_mlp);
  w.problem.num_shared = 1;
  w.problem.shared_inter = w.shared->weights.up.rows;
  w.problem.shared_gate = !w.shared->gate.empty();
}

/// What the options change of the layer itself.
void apply_overrides(LayerWeights& w, const BuildOptions& o) {
  Problem& p = w.problem;
  if (!o.with_shared) drop_shared(w);
  if (o.with_parallel_mlp) join_parallel_mlp(w);
  if (o.top_k) {
    require(p.routing.choice == ChoiceRule::kTopK || *o.top_k == p.top_k(), "top_k = ", *o.top_k,
            ": this layer's routing fixes it at ", p.top_k(), "; leave it out");
    p.routing.top_k = *o.top_k;
  }
  require(!o.routed_scaling_factor || !checkpoint::has_notice(w, checkpoint::kOutputBias),
          "routed_scaling_factor = ", o.routed_scaling_factor.value_or(1), ": layer ", w.layer,
          "'s experts carry the block's output bias, which must not be scaled; leave it out");
  if (o.routed_scaling_factor) p.routed_scaling_factor = *o.routed_scaling_factor;
  if (o.combine) p.combine = *o.combine;
  // A format that is declared weight-only keeps its bf16 activations until another one is asked
  // for.
  const bool converts = o.format && leaves::to_format(*o.format) != p.format;
  if (o.activations != ActivationMode::kFormat || converts) p.activations = o.activations;
  p.dtype = o.dtype.value_or(o.activations == ActivationMode::kF32 ? Dtype::kF32 : Dtype::kBf16);
  p.check();
}

Deployment make_deployment(const BuildOptions& o) {
  require(o.threads >= 0 && o.threads <= 1024, "threads = ", o.threads,
          " is outside 0..1024; 0 means every CPU");
  Deployment d;
  d.device = o.device.value_or(Device::kCpu);
  d.slots = o.slots;
  d.ep = o.ep;
  d.tp = o.tp;
  if (o.parallel) d.parallel = *o.parallel;
  d.fuse_shared = o.fuse_shared;
  d.env = resolve::environment();
  if (o.device == Device::kCuda && d.env.num_gpus == 0)
    throw DeviceError(
        "device cuda is pinned, but there is no GPU here (or this build has no CUDA "
        "twins); run on one that has, or use device cpu");
  return d;
}

resolve::Report choose_leaf(const Problem& p, const Deployment& d, const BuildOptions& o,
                            api::Join& join) {
  resolve::Request request{.leaf = o.leaf, .device = o.device, .prefer = o.prefer, .comm = o.comm};
  api::Served served = api::ask_served(p, d, request, o.comm);
  resolve::Report& report = served.report;
  const Eligibility& built = served.built;
  join = std::move(served.join);
  if (!report.winner.empty() && !built.eligible())
    throw CannotServe(cat(to_string(built.reason()), ": ", built.detail()),
                      resolve::to_json(report), built.reason());
  if (!report.winner.empty()) return std::move(report);
  std::string why = "nothing was considered";
  std::optional<Reject> reason;
  // What the format's own leaf says tells more than that the others are of other formats.
  for (const resolve::Rejection& r : report.rejected)
    if (r.candidate == report.degraded_from || !reason ||
        (*reason == Reject::kQuantUnsupported && r.reason != Reject::kQuantUnsupported)) {
      why = cat(r.candidate, " says ", to_string(r.reason), ": ", r.detail);
      reason = r.reason;
    }
  throw CannotServe(cat("no leaf can serve format ", show_format(p.format), " on ",
                        to_string(d.device), "; ", why, "; see `switchyard explain`"),
                    resolve::to_json(report), reason);
}

/// The leaf of the shared expert's own format, asked about a layer that is only that FFN.
const leaves::Leaf* choose_shared_leaf(const LayerWeights& w, const Deployment& d) {
  if (!w.shared) return nullptr;
  Problem p = w.problem;
  p.shared_inter = w.shared->weights.up.rows;
  p.activation = w.shared->activation;
  const leaves::Found found = api::ask_shared_leaf(p, w.shared->format, d);
  if (!found.verdict.eligible())
    throw CannotServe(cat("the shared expert's format ", w.shared->format, " cannot be served: ",
                          to_string(found.verdict.reason()), ": ", found.verdict.detail()),
                      "{}", found.verdict.reason());
  return found.leaf;
}

void check_latent(const LayerWeights& w, const resolve::Report& report) {
  if (!w.latent) return;
  const Eligibility verdict = api::ask_latent(*w.latent);
  if (!verdict.eligible())
    throw CannotServe(cat(to_string(verdict.reason()), ": ", verdict.detail()),
                      resolve::to_json(report), verdict.reason());
}

/// One rank has nobody to combine with; asking for a precision changes nothing, and says so.
void note_combine(const Problem& p, const Deployment& d, std::vector<std::string>& notices) {
  const CombinePrecision asked = resolve::asked_combine(p, d);
  if (d.ranks() == 1 && asked != CombinePrecision::kBf16)
    notices.push_back(
        cat("combine = ", to_string(asked), " has no effect: one rank combines nothing"));
}

/// Where the joint shared FFN may be cut: its rows of FC1, its columns of FC2.
std::int64_t slice_multiple(const checkpoint::ExpertWeights& shared) {
  const std::int64_t byte = formats::bits_of(shared.down.layout.element) == 4 ? 2 : 1;
  return std::lcm(std::max<std::int64_t>(1, shared.up.layout.block_rows),
                  std::max(byte, shared.down.layout.block_cols));
}

bool decide_fusion(const LayerWeights& w, const Deployment& d, std::vector<std::string>& notices) {
  const bool asked = d.fuse_shared || d.env.flag(kSharedFusionSwitch) == "1";
  if (!asked || !w.shared) return false;
  const Eligibility verdict =
      can_fuse_shared(w.problem, d,
                      {w.shared->format, w.shared->activation,
                       !formats::is_static(w.activation_quant), slice_multiple(w.shared->weights)});
  const bool same_storage =
      w.shared->weights.up.layout == w.layout && w.shared->activation_quant == w.activation_quant;
  if (verdict.eligible() && same_storage) return true;
  if (verdict.eligible()) {
    notices.push_back(
        "fused shared experts were asked for and are not used: their scales or "
        "activation quantiser differ from the routed experts'");
    return false;
  }
  notices.push_back(cat("fused shared experts were asked for and are not used: ",
                        to_string(verdict.reason()), ": ", verdict.detail()));
  return false;
}

/// The given tokens, filled up to the calibration size with seeded ones of the same spread.
std::vector<float> calibration_tokens(std::vector<float> x, std::uint64_t seed,
                                      std::int64_t hidden) {
  require(x.size() % std::size_t(hidden) == 0, "calibration holds ", x.size(),
          " values, which is no multiple of H = ", hidden);
  for (std::size_t i = 0; i < x.size(); ++i)
    require(std::isfinite(x[i]), "calibration value ", i, " is ", x[i],
            "; scales are made of finite ones");
  double squares = 0;
  for (float v : x) squares += double(v) * double(v);
  const float rms = x.empty() ? 1.0f : float(std::sqrt(squares / double(x.size())));
  const Random random(seed, 77);
  while (std::int64_t(x.size()) < kCalibrationTokens * hidden)
    x.push_back(rms * random.normal(x.size()));
  return x;
}

/// What packing on a GPU took; empty where the host packed.
std::string packing_text(const layer::Layer& layer) {
  const layer::PackingMemory packing = layer.packing();
  if (packing.device == 0) return {};
  const auto mib = [](std::size_t bytes) { return (bytes + (std::size_t(1) << 20) - 1) >> 20; };
  return cat("the GPU packed the experts, through ", mib(packing.device), " MiB of its memory and ",
             mib(packing.pinned), " MiB of the host's, which are free again");
}

}  // namespace

LayerBuilder::Prepared LayerBuilder::prepare(LayerWeights weights, const BuildOptions& o) {
  Prepared out;
  out.state = std::make_unique<MoeLayer::State>();
  MoeLayer::State& state = *out.state;
  apply_overrides(weights, o);
  Deployment& d = out.deployment = make_deployment(o);
  d.check();
  if (d.ranks() > 1) weights.problem.combine = resolve::asked_combine(weights.problem, d);
  Problem asked = weights.problem;
  const std::string own = asked.format;
  if (o.format) asked.format = leaves::to_format(*o.format);
  state.report = choose_leaf(asked, d, o, out.join);
  check_latent(weights, state.report);
  state.plan = resolve::make_plan(state.report);
  const leaves::Leaf* leaf = leaves::find_leaf_by_id(state.plan.leaf);
  ensure(leaf->id.quant == asked.format, "the winner ", state.plan.leaf, " is not a leaf of ",
         asked.format);
  d.device = state.plan.deployment.device;
  weights = layer::convert_format(std::move(weights), *leaf);
  state.requantised = own != asked.format;
  state.notices = weights.notices;
  note_combine(asked, d, state.notices);
  for (std::string& line : api::overruled(d.env, o.comm, o.combine))
    state.notices.push_back(std::move(line));

  layer::LayerOptions& options = out.options;
  options.leaf = leaf;
  options.shared_leaf = choose_shared_leaf(weights, d);
  options.activations = o.activations;
  options.dtype = weights.problem.dtype;
  options.isa = d.env.isa;
  options.tactics = tuned_choices(d.env, o.tuning);
  if (d.device == Device::kCuda && o.tuning.empty())
    if (std::string stale = shipped_notice(d.env); !stale.empty())
      state.notices.push_back(std::move(stale));
  options.fuse_shared = decide_fusion(weights, d, state.notices);
  options.memory_bytes = d.env.memory_bytes;
  options.progress = o.progress;
  out.weights = std::move(weights);
  return out;
}

std::optional<LayerBuilder::Calibration> LayerBuilder::calibration(
    const layer::Layer& l, bool needed, const BuildOptions& o, std::vector<std::string>& notices,
    const std::vector<float>& spare) {
  if (!needed) {
    if (!o.calibration.empty())
      notices.push_back(cat("the calibration tokens are not used: the activations of format ",
                            show_format(l.problem().format),
                            formats::is_static(l.routed().shape.quant)
                                ? " have the static scales that came with the weights"
                                : " have no static scales"));
    return {};
  }
  const std::vector<float>& given = o.calibration.empty() ? spare : o.calibration;
  const std::int64_t hidden = l.problem().hidden;
  Calibration out;
  out.hidden = calibration_tokens(given, o.seed, hidden);
  out.token_ids.resize(out.hidden.size() / std::size_t(hidden));
  const std::int64_t vocab = std::max<std::int64_t>(1, l.weights().router.vocab);
  for (std::size_t t = 0; t < out.token_ids.size(); ++t) out.token_ids[t] = std::int64_t(t) % vocab;
  notices.push_back(cat("static activation scales calibrated on ", out.token_ids.size(),
                        " tokens, ", std::int64_t(given.size()) / hidden, " of them given"));
  return out;
}

MoeLayer LayerBuilder::build(LayerWeights weights, const BuildOptions& o,
                             const std::vector<float>& spare_calibration) {
  if (o.ep > 0 && o.tp > 0 && o.ep * o.tp > 1)
    throw CannotServe(
        cat("path_not_enabled: ep ", o.ep, " x tp ", o.tp, " = ", o.ep * o.tp,
            " ranks: a MoeLayer is of one rank; build a RankMoeLayer on each of them"),
        "{}");
  require(o.pool == nullptr || o.threads == 0, "threads = ", o.threads, " and a pool of ",
          o.pool != nullptr ? o.pool->size() : 0, " threads are given; leave one of them out");
  Prepared prepared = prepare(std::move(weights), o);
  MoeLayer::State& state = *prepared.state;
  prepared.options.pool =
      o.pool != nullptr
          ? o.pool
          : std::make_shared<ThreadPool>(
                o.threads > 0 ? o.threads : std::clamp(prepared.deployment.env.num_cpus, 1, 1024));
  state.layer = std::make_unique<layer::Layer>(std::move(prepared.weights), prepared.options);
  if (std::string packing = packing_text(*state.layer); !packing.empty())
    state.notices.push_back(std::move(packing));
  for (resolve::Knob& knob : state.report.knobs)  // a checkpoint may declare another quantiser
    if (knob.name == "activations")
      knob.effective = cat(formats::to_string(state.layer->routed().shape.quant));
  if (const auto c = calibration(*state.layer, state.layer->needs_calibration(), o, state.notices,
                                 spare_calibration))
    state.layer->calibrate(std::int64_t(c->token_ids.size()), c->hidden.data(),
                           c->token_ids.data());
  return MoeLayer(std::move(prepared.state));
}

std::vector<MoeLayer> LayerBuilder::copies(MoeLayer layer, std::int64_t count) {
  std::vector<MoeLayer> out;
  out.push_back(std::move(layer));
  while (std::int64_t(out.size()) < count) out.push_back(copy(out.front()));
  return out;
}

MoeLayer LayerBuilder::copy(const MoeLayer& layer) {
  const MoeLayer::State& from = *layer.state_;
  auto state = std::make_unique<MoeLayer::State>();
  state->layer = from.layer->copy();
  state->report = from.report;
  state->plan = from.plan;
  state->notices = from.notices;
  state->requantised = from.requantised;
  return MoeLayer(std::move(state));
}

}  // namespace switchyard
