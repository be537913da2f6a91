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
#include "switchyard/base/sha256.h"
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

constexpr std::string_view kBuilding = "building of a layer on the ranks";
constexpr std::string_view kUpdate = "update_expert";

/// As comm::guarded(), but a rank that failed itself throws what it failed with.
template <class F>
void guarded_as_thrown(comm::Group& group, std::string_view phase, F&& work) {
  std::exception_ptr own;
  try {
    comm::guarded(group, phase, [&] {
      try {
        work();
      } catch (...) {
        own = std::current_exception();
        throw;
      }
    });
  } catch (const std::exception&) {
    if (own) std::rethrow_exception(own);
    throw;
  }
}

template <class T>
std::string digest_of(const std::vector<T>& values) {
  return sha256_hex({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

/// The options for so many ranks.
BuildOptions on_ranks(const RankBuildOptions& o, std::int64_t ranks) {
  BuildOptions build = o.build;
  const bool cut = build.parallel == Parallel::kDtp || build.parallel == Parallel::kTtp;
  if (build.ep == 1 && build.tp == 1) (cut ? build.tp : build.ep) = ranks;
  const bool each_fits = build.ep >= 1 && build.tp >= 1 && build.ep <= ranks && build.tp <= ranks;
  require(each_fits && build.ep * build.tp == ranks, "ep ", build.ep, " x tp ", build.tp,
          " is not the number of ranks, ", ranks,
          "; leave both out for as many EP ranks as there are ranks");
  if (!build.parallel) build.parallel = build.ep > 1 ? Parallel::kDep : Parallel::kTtp;
  if (ranks == 1) build.parallel = Parallel::kTtp;  // nobody to exchange with
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
  explicit State(Rank::State& on) : seat(on) {}
  Rank::State& seat;
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
    const Rank::State::Turn turn(seat);
    const int share = rank_threads(seat.group);
    std::optional<PreparedLayer> p;
    std::shared_ptr<ThreadPool> pool;
    std::string digest;
    guarded_as_thrown(seat.group, kBuilding, [&] {
      require(o.max_tokens >= 1, "max_tokens = ", o.max_tokens,
              ": the most tokens of one rank and call, at least 1");
      const BuildOptions build = on_ranks(o, rank.size());
      p.emplace(LayerBuilder::prepare(source.weights(), build));
      p->slot_experts = slot_experts_of(o, *p);
      check_pinned_leaf("build", *p, build);
      if (source.digest) digest = source.digest();
      pool = seat.pool(build.threads > 0 ? build.threads : share);
    });
    const layer::RankOptions options = part_of(seat, *p, std::move(pool), o);
    compare(seat.group, {source.name, digest, digest_of(p->weights.router.weight)}, o);
    auto state = std::make_unique<RankMoeLayer::State>(seat);
    state->layer = std::make_unique<layer::RankLayer>(seat.group, std::move(p->weights), options);
    state->report = std::move(p->state->report);
    state->notices = std::move(p->state->notices);
    state->requantised = p->state->requantised;
    state->strategy = p->join.strategy != nullptr ? p->join.strategy->name : "all_reduce";
    calibrate_rank(*state->layer, o.build, state->notices);
    return RankMoeLayer(std::move(state));
  }

  static layer::RankOptions part_of(Rank::State& seat, const PreparedLayer& p,
                                    std::shared_ptr<ThreadPool> pool, const RankBuildOptions& o) {
    layer::RankOptions options = part_options(seat.group, p, std::move(pool));
    options.capacity = o.max_tokens;
    options.chunk = o.chunk_tokens;
    options.ending = o.ending;
    options.finalize = o.finalize;
    options.balanced = o.balanced;
    options.ends = &seat.ends;
    options.shared_gpu = seat.shared_gpu;
    return options;
  }

  /// What would be told only behind the packing, or never.
  struct Origin {
    std::string name, checkpoint, router;
  };
  static void compare(comm::Group& group, const Origin& from, const RankBuildOptions& o) {
    const comm::Agreed values[] = {
        {"the layer", from.name},
        {"seed", cat(o.build.seed)},
        {"max_tokens", cat(o.max_tokens)},
        {"a checkpoint whose digest", from.checkpoint},
        {"a router whose digest", from.router},
        {"calibration tokens of digest", digest_of(o.build.calibration)}};
    comm::agree(group, values, kBuilding);
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
void RankMoeLayer::forward(const ForwardArgs& args) {
  const Rank::State::Turn turn(state_->seat);
  state_->layer->forward(args);
}
void RankMoeLayer::forward(const ForwardArgs& args, const BehindLayer& behind) {
  const Rank::State::Turn turn(state_->seat);
  state_->layer->forward(args, behind);
}
void RankMoeLayer::wait(Stream stream) {
  const Rank::State::Turn turn(state_->seat);
  state_->layer->wait(stream);
}
void RankMoeLayer::check() {
  const Rank::State::Turn turn(state_->seat);
  state_->layer->check();
}

void RankMoeLayer::update_expert(std::int64_t e, const ExpertArrays& arrays) {
  const Rank::State::Turn turn(state_->seat);
  layer::RankLayer& layer = *state_->layer;
  checkpoint::ExpertWeights expert;
  guarded_as_thrown(layer.group(), kUpdate, [&] {
    expert = expert_from(arrays, problem(), layer.part().routed().shape.weights);
  });
  layer.update_expert(e, expert);
}

void RankMoeLayer::update_expert(std::int64_t e, const Checkpoint& checkpoint, std::int64_t index) {
  const Rank::State::Turn turn(state_->seat);
  layer::RankLayer& layer = *state_->layer;
  checkpoint::ExpertWeights expert;
  std::vector<std::string> notices;
  guarded_as_thrown(layer.group(), kUpdate, [&] {
    const checkpoint::LayerWeights weights = replacing_layer(
        checkpoint, index, e, {problem(), *layer.part().options().leaf, state_->requantised});
    expert = weights.expert(e);
    notices = weights.notices;
  });
  layer.update_expert(e, expert);
  add_notices(notices, state_->notices);
}

std::vector<std::int64_t> RankMoeLayer::take_counts() {
  const Rank::State::Turn turn(state_->seat);
  return state_->layer->take_counts();
}
void RankMoeLayer::migrate(const std::vector<std::int32_t>& slot_experts) {
  const Rank::State::Turn turn(state_->seat);
  state_->layer->migrate(slot_experts);
}

}  // namespace switchyard
