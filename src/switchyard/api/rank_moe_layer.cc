// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/rank_moe_layer.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "switchyard/api/checkpoint.h"
#include "switchyard/api/layer_arrays.h"
#include "switchyard/api/layer_builder.h"
#include "switchyard/api/rank_builder.h"
#include "switchyard/api/rank_state.h"
#include "switchyard/api/replacement.h"
#include "switchyard/base/check.h"
#include "switchyard/checkpoint/digest.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/core/preset.h"
#include "switchyard/eplb/placement.h"
#include "switchyard/layer/rank_layer.h"
#include "switchyard/layer/synthetic.h"
#include "switchyard/resolve/json.h"
#include "switchyard/resolve/report.h"

namespace switchyard {
namespace {

constexpr std::string_view kPhase = "building of a layer on the ranks";

/// As comm::guarded(), but a rank that failed itself throws what it failed with.
template <class F>
void guarded_as_thrown(comm::Group& group, F&& work) {
  std::exception_ptr own;
  try {
    comm::guarded(group, kPhase, [&] {
      try {
        work();
      } catch (...) {
        own = std::current_exception();
        throw;
      }
    });
  } catch (const UsageError&) {
    if (own) std::rethrow_exception(own);
    throw;
  }
}

/// The options for so many ranks.
BuildOptions on_ranks(const RankBuildOptions& o, std::int64_t ranks) {
  BuildOptions build = o.build;
  if (build.ep == 1 && build.tp == 1) build.ep = ranks;
  require(build.ep >= 1 && build.tp >= 1 && build.ep * build.tp == ranks, "ep ", build.ep, " x tp ",
          build.tp, " is not the number of ranks, ", ranks,
          "; leave both out for as many EP ranks as there are ranks");
  if (!build.parallel) build.parallel = build.ep > 1 ? Parallel::kDep : Parallel::kTtp;
  require(build.pool == nullptr,
          "a pool of threads is given, and a rank has one of its own; leave it out");
  const auto slots = std::int64_t(o.slot_experts.size());
  require(slots == 0 || build.slots == 0 || build.slots == slots, "slots = ", build.slots,
          ", slot_experts has ", slots, "; leave slots out");
  if (slots != 0) build.slots = slots;
  return build;
}

std::vector<std::int32_t> slot_experts_of(const RankBuildOptions& o, const PreparedLayer& p) {
  const std::int64_t experts = p.weights.problem.num_experts();
  const std::int64_t slots = p.deployment.num_slots(experts);
  if (!o.slot_experts.empty() || slots == experts) return o.slot_experts;
  return eplb::linear_placement({experts, slots, p.deployment.ep}, 1).layers[0];
}

}  // namespace

/// One rank's end, and what was decided in front of it.
struct RankMoeLayer::State {
  std::unique_ptr<layer::RankLayer> layer;
  resolve::Report report;
  std::vector<std::string> notices;
  bool requantised = false;  // the experts came in another format
  std::string strategy;
};

/// What every entry point ends in.
struct RankLayerBuilder {
  /// Where the weights come from.
  struct Source {
    std::function<checkpoint::LayerWeights()> weights;
    std::string name;                          // for the ranks to compare
    std::function<std::string()> digest = {};  // of a checkpoint
  };

  static RankMoeLayer build(Rank& rank, const Source& source, const RankBuildOptions& o) {
    Rank::State& seat = rank.state();
    std::optional<PreparedLayer> p;
    std::string digest;
    guarded_as_thrown(seat.group, [&] {
      require(o.max_tokens >= 1, "max_tokens = ", o.max_tokens,
              ": the most tokens of one rank and call, at least 1");
      const BuildOptions build = on_ranks(o, rank.size());
      p.emplace(LayerBuilder::prepare(source.weights(), build));
      p->slot_experts = slot_experts_of(o, *p);
      check_pinned_leaf("build", *p, build);
      if (seat.processes && source.digest) digest = source.digest();
    });
    layer::RankOptions options = part_options(seat.group, *p, seat.pool(o.build.threads));
    set_calls(options, o);
    options.ends = &seat.ends;
    options.agreed.push_back({"the layer", source.name});
    options.agreed.push_back({"a checkpoint whose digest", digest});
    auto state = std::make_unique<RankMoeLayer::State>();
    state->layer = std::make_unique<layer::RankLayer>(seat.group, std::move(p->weights), options);
    state->report = std::move(p->state->report);
    state->notices = std::move(p->state->notices);
    state->requantised = p->state->requantised;
    state->strategy = p->join.strategy != nullptr ? p->join.strategy->name : "all_reduce";
    calibrate_rank(*state->layer, o.build, state->notices);
    return RankMoeLayer(std::move(state));
  }

  /// What the calls will be, and that the ranks must not build with unlike seeds.
  static void set_calls(layer::RankOptions& options, const RankBuildOptions& o) {
    options.capacity = o.max_tokens;
    options.chunk = o.chunk_tokens;
    options.ending = o.ending;
    options.finalize = o.finalize;
    options.balanced = o.balanced;
    options.agreed.push_back({"seed", cat(o.build.seed)});
  }

  /// What tells where a checkpoint's layer comes from, without reading all of it.
  static Source of(const Checkpoint& checkpoint, std::int64_t index) {
    return {[&checkpoint, index] { return checkpoint.impl().layer(index); },
            cat("layer ", index, " of a checkpoint"),
            [&checkpoint, index] {
              std::vector<std::string> blocks;
              for (const LayerEntry& entry : checkpoint.layers())
                if (entry.index == index) blocks.push_back(entry.block);
              return checkpoint::checkpoint_digest(checkpoint.impl().path(), blocks);
            }};
  }
};

RankMoeLayer RankMoeLayer::from_checkpoint(Rank& rank, const Checkpoint& checkpoint,
                                           std::int64_t index, const RankBuildOptions& options) {
  return RankLayerBuilder::build(rank, RankLayerBuilder::of(checkpoint, index), options);
}

RankMoeLayer RankMoeLayer::from_preset(Rank& rank, std::string_view preset,
                                       const RankBuildOptions& options) {
  return RankLayerBuilder::build(
      rank,
      {[&] { return layer::make_synthetic(make_preset(preset), options.build.seed); },
       std::string(preset)},
      options);
}

RankMoeLayer RankMoeLayer::from_arrays(Rank& rank, const LayerArrays& arrays,
                                       const RankBuildOptions& options) {
  const BorrowedArrays borrowed(arrays);
  return RankLayerBuilder::build(rank, {[&] { return borrowed.weights(); }, "of a caller's arrays"},
                                 options);
}

RankMoeLayer::RankMoeLayer(std::unique_ptr<State> state) : state_(std::move(state)) {}
RankMoeLayer::RankMoeLayer(RankMoeLayer&&) noexcept = default;
RankMoeLayer& RankMoeLayer::operator=(RankMoeLayer&&) noexcept = default;
RankMoeLayer::~RankMoeLayer() = default;

const Problem& RankMoeLayer::problem() const { return state_->layer->part().problem(); }
Parallel RankMoeLayer::parallel() const { return state_->layer->parallel(); }
std::string RankMoeLayer::leaf() const { return std::string(state_->layer->leaf_id()); }
std::string RankMoeLayer::strategy() const { return state_->strategy; }
std::string RankMoeLayer::report_json() const { return resolve::to_json(state_->report); }
const std::vector<std::string>& RankMoeLayer::notices() const { return state_->notices; }
std::vector<std::int32_t> RankMoeLayer::slot_experts() const {
  const auto slots = state_->layer->slots().experts();
  return {slots.begin(), slots.end()};
}
layer::RankLayer& RankMoeLayer::impl() { return *state_->layer; }

std::size_t RankMoeLayer::workspace_bytes() const { return state_->layer->workspace_bytes(); }
void RankMoeLayer::forward(const ForwardArgs& args) { state_->layer->forward(args); }
void RankMoeLayer::forward(const ForwardArgs& args, const BehindLayer& behind) {
  state_->layer->forward(args, behind);
}

void RankMoeLayer::update_expert(std::int64_t e, const ExpertArrays& arrays) {
  layer::RankLayer& layer = *state_->layer;
  checkpoint::ExpertWeights expert;
  guarded_as_thrown(layer.group(), [&] {
    expert = expert_from(arrays, problem(), layer.part().routed().shape.weights);
  });
  layer.update_expert(e, expert);
}

void RankMoeLayer::update_expert(std::int64_t e, const Checkpoint& checkpoint, std::int64_t index) {
  layer::RankLayer& layer = *state_->layer;
  checkpoint::ExpertWeights expert;
  std::vector<std::string> notices;
  guarded_as_thrown(layer.group(), [&] {
    const checkpoint::LayerWeights weights = replacing_layer(
        checkpoint, index, e, {problem(), *layer.part().options().leaf, state_->requantised});
    expert = weights.expert(e);
    notices = weights.notices;
  });
  layer.update_expert(e, expert);
  add_notices(notices, state_->notices);
}

std::vector<std::int64_t> RankMoeLayer::take_counts() { return state_->layer->take_counts(); }
void RankMoeLayer::migrate(const std::vector<std::int32_t>& slot_experts) {
  state_->layer->migrate(slot_experts);
}

}  // namespace switchyard
