// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/rank_layer.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "switchyard/base/check.h"
#include "switchyard/base/sha256.h"
#include "switchyard/base/version.h"
#include "switchyard/comm/gathered.h"
#include "switchyard/core/shard.h"
#include "switchyard/layer/bank.h"
#include "switchyard/layer/calibrate.h"
#include "switchyard/layer/device_rank.h"

namespace switchyard::layer {
namespace {

constexpr std::string_view kPhase = "creation of the layer's part";

/// The deployment that the options and the group make.
Deployment deployment_of(const comm::Group& group, const RankOptions& o) {
  Deployment d;
  d.device = o.layer.leaf->device;
  d.parallel = o.parallel;
  d.tp = o.tp;
  d.ep = group.size() / o.tp;
  d.fuse_shared = o.layer.fuse_shared;
  return d;
}

void check_served_by_gpus(const Problem& p, const Deployment& d, const RankOptions& o) {
  const Eligibility verdict = comm::can_reduce_between_gpus(p, d);
  require(verdict.eligible(), "leaf ", o.layer.leaf->id.str(), ": ",
          verdict.eligible() ? "" : verdict.detail());
  require(!o.balanced &&
              (o.slot_experts.empty() || std::int64_t(o.slot_experts.size()) == p.num_experts()),
          "leaf ", o.layer.leaf->id.str(), ": ", o.slot_experts.size(), " slots for ",
          p.num_experts(), o.balanced ? " experts that may migrate" : " experts",
          "; ranks on GPUs hold each expert once, and where it was put");
  require(o.finalize.run == nullptr,
          "a finalize of the caller's reads rows on the host, and these lie on GPUs; use finalize "
          "fused, or device cpu");
}

void check_served(const comm::Group& group, const Problem& p, const RankOptions& o) {
  require(o.tp >= 1 && group.size() % o.tp == 0, "tp = ", o.tp, " does not divide the ",
          group.size(), " ranks of the group");
  const Eligibility verdict = can_spread(p, deployment_of(group, o));
  require(verdict.eligible(), verdict.eligible() ? "" : verdict.detail());
  if (o.layer.leaf->device == Device::kCuda) check_served_by_gpus(p, deployment_of(group, o), o);
  require(o.exchange.live.empty(), "a layer of ranks does not go on without some of them yet; ",
          "build it anew among the survivors");
  require(o.parallel != Parallel::kDep || o.strategy != nullptr,
          "ranks under dep need a strategy to exchange tokens");
  require(
      o.ending == Ending::kPlain || o.parallel == Parallel::kTep || o.parallel == Parallel::kTtp,
      "finalize ", to_string(o.ending), " ends layers whose ranks hold the same tokens, not ",
      to_string(o.parallel), "; ask for tep or ttp, or for finalize plain");
  require(o.ending == Ending::kPlain || o.finalize.run == nullptr, "finalize ", to_string(o.ending),
          " happens in the all-reduce, and the caller brings one of its own");
  ensure(o.ends == nullptr || (o.exchange.first_sequence == 0 && o.exchange.hook.at == nullptr),
         "what layers share has no sequence or hook of one of them");
  require(o.chunk >= 0, "chunk_tokens = ", o.chunk, " is negative; 0 means the capacity");
  require(o.chunk == 0 || o.parallel == Parallel::kDep, "chunk_tokens = ", o.chunk, ": ",
          to_string(o.parallel), " reduces whole calls; leave it out");
  require(o.chunk == 0 || o.strategy != &comm::fused(), "chunk_tokens = ", o.chunk,
          ": the fused exchange takes whole calls, and runs rows in batches of its own; leave it "
          "out, or choose another strategy");
  require(o.finalize.run == nullptr || o.strategy == nullptr ||
              o.strategy->contract.weights == comm::WeightsBy::kExperts,
          "a finalize of the caller's stands in front of the combine, where strategy ",
          o.strategy == nullptr ? "" : o.strategy->name,
          " has not weighed the rows; choose another strategy");
  require(o.finalize.run == nullptr || p.routing.placement == WeightPlacement::kOutput,
          "a finalize of the caller's weighs rows, and this layer has its weights on the input");
  require(o.finalize.run == nullptr || p.routing.zero_experts == 0,
          "a finalize of the caller's sums experts' rows, and this layer has zero experts");
  require(o.finalize.run == nullptr || !o.layer.fuse_shared,
          "a finalize of the caller's would weigh fused shared experts; build without fusion");
  require(!o.layer.fuse_shared || (o.slot_experts.empty() && !o.balanced),
          "fused shared experts stand behind the experts, which are then not spread over slots");
  const std::int64_t ep = group.size() / o.tp;
  const auto slots = std::int64_t(o.slot_experts.empty() ? p.num_experts() : o.slot_experts.size());
  require(slots >= ep, slots, " slots are fewer than the ", ep,
          " ranks that hold experts; each needs one at least");
  require(o.parallel != Parallel::kDep ||
              o.strategy->contract.weights == comm::WeightsBy::kExperts ||
              p.routing.placement != WeightPlacement::kInput,
          "strategy ", o.strategy == nullptr ? "" : o.strategy->name,
          " weighs in the combine, this layer on the experts' input; choose another strategy");
}

/// A layer whose slots may change has a table of them from the start.
RankOptions with_slots(RankOptions o, std::int64_t experts) {
  if (o.balanced && o.slot_experts.empty()) {
    o.slot_experts.resize(std::size_t(experts));
    std::iota(o.slot_experts.begin(), o.slot_experts.end(), 0);
  }
  return o;
}

std::vector<std::int32_t> slot_experts_of(const RankOptions& o, std::int64_t experts) {
  std::vector<std::int32_t> out = o.slot_experts;
  if (out.empty()) {
    out.resize(std::size_t(experts));
    std::iota(out.begin(), out.end(), 0);
  }
  return out;
}

/// The map of slots, which every rank must be able to make.
eplb::SlotMap agreed_slots(comm::Group& group, const RankOptions& o, std::int64_t experts) {
  std::optional<eplb::SlotMap> out;
  guarded(group, kPhase, [&] { out.emplace(slot_experts_of(o, experts), experts); });
  return *std::move(out);
}

/// The activation with its first expert's constants for all, whose number is then of no matter.
Activation with_one_value(Activation a) {
  auto cut = [](PerExpert& constant) { constant.values.resize(1); };
  std::visit(
      [&](auto& kind) {
        if constexpr (requires { kind.clamp; })
          if (kind.clamp) cut(*kind.clamp);
        if constexpr (requires { kind.gate_sigmoid_scale; }) cut(kind.gate_sigmoid_scale);
        if constexpr (requires { kind.linear_offset; }) cut(kind.linear_offset);
        if constexpr (requires { kind.gate_softcap; }) cut(kind.gate_softcap);
        if constexpr (requires { kind.linear_softcap; }) cut(kind.linear_softcap);
      },
      a);
  return a;
}

/// The weights by slot. Constants of the activation are by expert, so they must be one for all
/// where slots are not the experts in their order.
checkpoint::LayerWeights by_slot(checkpoint::LayerWeights w, const RankOptions& o,
                                 std::shared_ptr<const std::vector<std::int32_t>> table,
                                 std::shared_ptr<const ExpertUpdates> updates) {
  if (o.slot_experts.empty()) return w;
  const ActivationParams first = lower(w.problem.activation, 0);
  for (std::int64_t e = 1; e < w.problem.num_experts(); ++e) {
    const ActivationParams a = lower(w.problem.activation, e);
    require(a.alpha == first.alpha && a.beta == first.beta && a.has_limit == first.has_limit &&
                (!a.has_limit || a.limit == first.limit),
            "the activation's constants differ between experts 0 and ", e,
            "; such a layer is not served in replicated slots, leave slots and placement out");
  }
  w.problem.activation = with_one_value(std::move(w.problem.activation));  // slots are no ids
  w.expert = [all = replaceable(std::move(w.expert), std::move(updates)), table = std::move(table)](
                 std::int64_t slot) { return all((*table)[std::size_t(slot)]); };
  return w;
}

std::string text_of(std::span<const std::int32_t> slot_experts) {
  std::string out;
  for (std::int32_t e : slot_experts) out += cat(e, " ");
  return out;
}

/// What decides how a token's choices are made and weighed.
std::string routing_of(const Problem& p) {
  const RoutingSpec& r = p.routing;
  return cat(to_string(r.method), " top ", r.top_k, " of ", r.num_experts, ", ", r.zero_experts,
             " zero experts, weights on the ",
             r.placement == WeightPlacement::kInput ? "input" : "output");
}

/// What the ranks must have in common. The first difference is told, so what a user can set comes
/// first, and the fingerprint, which is a number, last.
std::vector<comm::Agreed> common_of(const Layer& layer, const RankOptions& o, comm::Wire wire,
                                    const Payload& payload) {
  const Problem& p = layer.problem();
  std::vector<comm::Agreed> out = {{"build", cat(version(), "+", commit())}};
  out.insert(out.end(), o.agreed.begin(), o.agreed.end());
  const std::vector<comm::Agreed> own = {
      {"leaf", layer.leaf_id()},
      {"shared leaf", layer.shared_leaf_id()},
      {"experts", cat(p.num_experts())},
      {"hidden", cat(p.hidden)},
      {"inter", cat(p.inter)},
      {"routing", routing_of(p)},
      {"factor", cat(p.routed_scaling_factor)},
      {"dtype", std::string(to_string(layer.options().dtype))},
      {"activations", std::string(to_string(layer.options().activations))},
      {"isa", std::string(to_string(layer.options().isa))},
      {"parallel", std::string(to_string(o.parallel))},
      {"tp", cat(o.tp)},
      {"capacity", cat(o.capacity)},
      {"chunk", cat(o.chunk)},
      {"payload", cat(payload.text(), " of ", payload.width)},
      {"finalize", o.finalize.run != nullptr ? "the caller's" : "the sum"},
      {"ending", std::string(to_string(o.ending))},
      {"slot layout", text_of(o.slot_experts)},
      {"balanced", o.balanced ? "yes" : "no"},
      {"wire",
       cat(comm::to_string(wire), " by ", o.strategy != nullptr ? o.strategy->name : "all_reduce")},
      {"fingerprint", o.fingerprint}};
  out.insert(out.end(), own.begin(), own.end());
  return out;
}

/// Why rows travel as they are, whatever the experts read of them.
std::string_view why_kept(const RankOptions& o) {
  if (o.parallel == Parallel::kDtp) return "dtp gathers rows as they are";
  if (o.parallel != Parallel::kDep) return "all ranks hold the same rows, none travel";
  return o.quantise_first ? "" : "SWITCHYARD_POST_QUANT_DISPATCH is 0";
}

/// FC1's static scale is the maximum over all experts, not only those of this rank.
float group_maximum(comm::Group& group, float value) {
  return std::ranges::max(comm::gathered(group, value, kPhase));
}

}  // namespace

Eligibility can_spread(const Problem& p, const Deployment& d) {
  auto no = [](const char* detail) { return Eligibility::no(Reject::kPathNotEnabled, detail); };
  if (d.fuse_shared && d.ranks() > 1 && d.parallel != Parallel::kTtp)
    return no(
        "shared experts are fused on one rank, or where every rank holds columns of all of "
        "them (ttp)");
  if (d.fuse_shared && p.latent > 0) return no("a latent layer's shared experts are not fused");
  return Eligibility::yes();
}

RankLayer::RankLayer(comm::Group& group, checkpoint::LayerWeights weights,
                     const RankOptions& options)
    : group_(group),
      options_(with_slots(options, weights.problem.num_experts())),
      num_experts_(weights.problem.num_experts()),
      slots_(agreed_slots(group, options_, num_experts_)),
      wire_(comm::to_wire(weights.problem.combine, options.layer.dtype)),
      table_(std::make_shared<std::vector<std::int32_t>>(options_.slot_experts)),
      updates_(std::make_shared<ExpertUpdates>()),
      counts_(options.balanced ? std::size_t(num_experts_) : 0) {
  const Problem problem = weights.problem;
  guarded(group, kPhase, [&] {
    check_served(group, problem, options);
    LayerOptions part = options.layer;
    if (!options.layer.fuse_shared) part.held = held_by(group.rank());  // else every rank holds all
    part.tp = {group.rank() % options.tp, options.tp};
    // A latent layer's shared expert stands behind the sum of shares, where it must be whole.
    if (options.parallel != Parallel::kDep && problem.latent == 0)
      part.shared_tp = {group.rank(), group.size()};
    layer_ = std::make_unique<Layer>(by_slot(std::move(weights), options_, table_, updates_), part);
  });
  payload_ = payload_of(*layer_, why_kept(options_));
  comm::agree(group, common_of(*layer_, options_, wire_, payload_), kPhase);
  needs_calibration_ = !group.vote(!layer_->needs_calibration(), kPhase);
  layer_->raise_fc1_scale(group_maximum(group, layer_->routed().scales.fc1));
  shape_ = layer_->routed().shape;
  if (on_cuda(*layer_)) {
    make_device_end();
    return;
  }
  if (options.parallel != Parallel::kDep) {
    make_reduction();
  } else if (options.strategy == &comm::fused()) {
    make_mega();
  } else {
    make_exchange();
  }
  // An exchange may have changed the shape of the calls.
  tactics_ = tuned_for(*options_.layer.leaf, shape_, layer_->options());
  if (options.ending != Ending::kPlain) make_ending();
  if (options.ends == nullptr) return;
  if (!options.ends->order) options.ends->order = std::make_shared<CallOrder>(group);
  order_ = options.ends->order;
  number_ = order_->add();
}

void RankLayer::make_exchange() {
  if (options_.strategy->contract.layout == comm::RowLayout::kExpertMajor) shape_.top_k = 1;
  const comm::ExchangeShape shape{.ep = group_.size() / options_.tp,
                                  .tp = options_.tp,
                                  .slots = slots_.num_slots(),
                                  .top_k = layer_->problem().top_k(),
                                  .capacity = chunk(),
                                  .hidden = shape_.hidden,
                                  .row_bytes = payload_.row_bytes,
                                  .scale_bytes = payload_.scale_bytes,
                                  .share_bytes = comm::wire_bytes(wire_, shape_.hidden),
                                  .num_stats = std::int64_t(counts_.size())};
  auto make = [&] {
    return comm::make_exchange(*options_.strategy, group_, shape, options_.exchange);
  };
  exchange_ = options_.ends == nullptr
                  ? make()
                  : options_.ends->exchanges.get(group_, {options_.strategy, shape}, make);
}

void RankLayer::make_mega() {
  const MegaShape shape{.slots = slots_.num_slots(),
                        .top_k = layer_->problem().top_k(),
                        .capacity = options_.capacity,
                        .hidden = shape_.hidden,
                        .row_bytes = payload_.row_bytes,
                        .scale_bytes = payload_.scale_bytes,
                        .share_bytes = comm::wire_bytes(wire_, shape_.hidden),
                        .num_stats = std::int64_t(counts_.size()),
                        .first_sequence = options_.exchange.first_sequence};
  const std::string_view format = options_.layer.leaf->id.quant;
  auto make = [&] { return std::make_shared<MegaMoe>(group_, shape, format); };
  mega_ = options_.ends == nullptr
              ? make()
              : options_.ends->fused_exchanges.get(group_, {shape, format}, make);
}

void RankLayer::make_reduction() {
  const comm::ReductionShape shape{
      .gathers = own_tokens(),
      .capacity = options_.capacity,
      .top_k = shape_.top_k,
      .hidden = shape_.hidden,
      .row_bytes = shape_.hidden * std::int64_t(size_of(payload_.dtype)),
      .share_bytes = comm::wire_bytes(wire_, shape_.hidden),
      .first_sequence = options_.exchange.first_sequence};
  auto make = [&] { return std::make_shared<comm::Reduction>(group_, shape); };
  reduction_ =
      options_.ends == nullptr ? make() : options_.ends->reductions.get(group_, shape, make);
}

void RankLayer::make_ending() {
  const FusedEnd::Args args{.ending = options_.ending,
                            .capacity = options_.capacity,
                            .held = layer_->options().held.size,
                            .fuses_shared = options_.layer.fuse_shared,
                            .dtype = layer_->options().dtype,
                            .isa = layer_->options().isa,
                            .pool = layer_->options().pool.get()};
  const Problem& problem = layer_->problem();
  auto make = [&] { return std::make_shared<FusedEnd>(group_, problem, args); };
  const EndingKey key{.hidden = problem.hidden,
                      .top_k = problem.top_k(),
                      .zero_experts = problem.routing.zero_experts,
                      .latent = problem.latent,
                      .placement = problem.routing.placement,
                      .combine = problem.combine,
                      .args = args};
  fused_ = options_.ends == nullptr ? make() : options_.ends->endings.get(group_, key, make);
}

void RankLayer::make_device_end() {
  device_ = std::make_unique<DeviceEnd>(group_, *layer_,
                                        DeviceEnd::Args{.ending = options_.ending,
                                                        .capacity = options_.capacity,
                                                        .local = local_numbers(),
                                                        .shared_device = options_.shared_gpu});
}

comm::WeightsBy RankLayer::weights_by() const {
  return reduces() ? comm::WeightsBy::kExperts : options_.strategy->contract.weights;
}

Shard RankLayer::held_by(int rank) const {
  return ep_shard(slots_.num_slots(), group_.size() / options_.tp, rank / options_.tp);
}

void RankLayer::place(std::int64_t tokens, const void* hidden, std::int64_t hidden_stride,
                      std::span<const std::int32_t> ids, std::span<std::int32_t> placed) const {
  const std::size_t k = std::size_t(layer_->problem().top_k());
  const std::size_t key_bytes =
      std::min(eplb::kTokenKeyBytes,
               std::size_t(layer_->problem().hidden) * size_of(layer_->options().dtype));
  const std::int32_t behind =
      options_.parallel == Parallel::kDep ? -1 : std::int32_t(slots_.num_slots() - num_experts_);
  for (std::size_t t = 0; t < std::size_t(tokens); ++t) {
    const auto* row = static_cast<const std::byte*>(hidden) + std::int64_t(t) * hidden_stride;
    const std::uint64_t key = eplb::token_key({row, key_bytes});
    for (std::size_t i = t * k; i < (t + 1) * k; ++i) {
      const bool zero = ids[i] >= num_experts_;
      if (zero) placed[i] = behind < 0 ? -1 : ids[i] + behind;
      if (!zero) placed[i] = ids[i] < 0 ? -1 : slots_.slot_of(ids[i], key);
    }
  }
}

bool RankLayer::adds_zero_experts(int source) const {
  if (options_.parallel == Parallel::kDep) return false;  // the source does, behind the sum
  return group_.rank() == (own_tokens() ? source : 0);
}

void RankLayer::localise(std::span<const std::int32_t> ids, std::span<const float> weights,
                         int source, std::int32_t* local_ids, float* local_weights) const {
  const Shard held = held_by(group_.rank());
  // Every rank holds columns of the fused shared experts, which stand where zero experts would.
  const bool zero = adds_zero_experts(source) || shape_.unscaled_choices > 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool is_zero = ids[i] >= slots_.num_slots();
    const std::int64_t local =
        is_zero ? held.size + ids[i] - slots_.num_slots() : ids[i] - held.begin;
    const bool here = ids[i] >= 0 && (is_zero ? zero : local >= 0 && local < held.size);
    local_ids[i] = here ? std::int32_t(local) : -1;
    local_weights[i] = here ? weights[i] : 0;
  }
}

std::vector<std::int32_t> RankLayer::local_numbers() const {
  const RoutingSpec& r = layer_->problem().routing;
  const std::int64_t behind = std::max<std::int64_t>(r.zero_experts, shape_.unscaled_choices);
  std::vector<std::int32_t> out(std::size_t(num_experts_ + behind));
  std::vector<float> weights(out.size(), 1);
  for (std::int64_t id = 0; id < std::int64_t(out.size()); ++id)
    out[std::size_t(id)] = id < num_experts_ ? slots_.slot_of(std::int32_t(id), 0)
                                             : std::int32_t(id + slots_.num_slots() - num_experts_);
  const std::vector<std::int32_t> slots = out;
  localise(slots, weights, 0, out.data(), weights.data());
  for (std::int32_t& local : out)
    if (shape_.inter == 0 && local < shape_.experts) local = -1;
  return out;
}

namespace {

/// The start, the middle and the end of an array, and its length.
std::string pieces_of(std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = 64;
  std::string out = cat(bytes.size(), ' ');
  const std::size_t size = std::min(kPiece, bytes.size());
  for (std::size_t at : {std::size_t(0), (bytes.size() - size) / 2, bytes.size() - size})
    out.append(reinterpret_cast<const char*>(bytes.data()) + at, size);
  return out;
}

/// Tells unlike replacements apart without reading all of them.
std::string digest_of(const checkpoint::ExpertWeights& w) {
  std::string seen;
  auto see = [&](const formats::Matrix& m) { seen += pieces_of(m.codes) + pieces_of(m.scales); };
  if (w.gate) see(*w.gate);
  see(w.up);
  see(w.down);
  for (const std::vector<float>* bias : {&w.gate_bias, &w.up_bias, &w.down_bias})
    seen += pieces_of(std::as_bytes(std::span(*bias)));
  return sha256_hex(seen);
}

/// Every rank's values of one type, in rank order.
template <class T>
std::vector<T> gathered(comm::Group& group, std::span<const T> mine, std::string_view phase) {
  std::vector<T> out;
  for (const std::string& text :
       group.all_gather({reinterpret_cast<const char*>(mine.data()), mine.size_bytes()}, phase)) {
    const std::size_t at = out.size();
    out.resize(at + text.size() / sizeof(T));
    if (!text.empty()) std::memcpy(out.data() + at, text.data(), text.size());
  }
  return out;
}

}  // namespace

// Every rank sees what its experts and columns make of all tokens; the maxima of all are the
// layer's.
void RankLayer::calibrate(std::int64_t tokens, const float* hidden, const std::int64_t* token_ids) {
  constexpr std::string_view kCalibration = "calibration of the ranks";
  if (!formats::is_static(layer_->routed().shape.quant)) return;
  const std::int64_t h = layer_->problem().hidden;
  guarded(group_, kCalibration, [&] {
    require(tokens >= 0 && (tokens == 0 || hidden != nullptr), "calibrate: tokens = ", tokens,
            hidden == nullptr ? " without hidden states" : ", must be 0 or more");
  });
  // Whether there are ids is the group's answer: a rank without tokens need not know.
  const std::int64_t kind[] = {tokens == 0 ? -1 : std::int64_t(token_ids != nullptr)};
  const std::vector<std::int64_t> kinds = gathered<std::int64_t>(group_, kind, kCalibration);
  const bool with_ids = std::ranges::count(kinds, 1) > 0;
  require(!with_ids || std::ranges::count(kinds, 0) == 0,
          "calibrate: some ranks give token ids and others none; give them on all");
  const std::vector<float> all =
      gathered<float>(group_, {hidden, std::size_t(tokens * h)}, kCalibration);
  const std::vector<std::int64_t> ids =
      with_ids
          ? gathered<std::int64_t>(
                group_, {token_ids, token_ids == nullptr ? 0 : std::size_t(tokens)}, kCalibration)
          : std::vector<std::int64_t>();
  const Shard held = held_by(group_.rank());
  CalibrationAmax amax;
  std::vector<std::int32_t> packed(std::size_t(num_experts_), -1);
  for (std::int64_t s = 0; s < held.size; ++s)
    packed[std::size_t(slots_.experts()[std::size_t(held.begin + s)])] = std::int32_t(s);
  guarded(group_, kCalibration, [&] {
    amax = calibration_amax(*layer_, std::int64_t(all.size()) / h, all.data(),
                            ids.empty() ? nullptr : ids.data(), packed);
  });
  std::vector<float> of_experts(std::size_t(num_experts_) + 1, -1.0F);
  auto expert_in = [&](std::int64_t slot) {
    return std::size_t(slots_.experts()[std::size_t(slot)]);
  };
  for (std::int64_t s = 0; s < held.size; ++s)
    of_experts[expert_in(held.begin + s)] =
        std::max(of_experts[expert_in(held.begin + s)], amax.fc2[std::size_t(s)]);
  of_experts.back() = amax.fc1;
  const std::vector<float> table = gathered<float>(group_, of_experts, kCalibration);
  for (std::size_t i = 0; i < table.size(); ++i) {
    float& most = of_experts[i % of_experts.size()];
    most = std::max(most, table[i]);
  }
  CalibrationAmax whole{of_experts.back(), {of_experts.begin(), of_experts.end() - 1}};
  const StaticScales by_expert =
      calibrated_scales(layer_->routed().shape.quant, whole, whole.largest());
  StaticScales scales{by_expert.fc1, {}, by_expert.unseen};
  for (std::int64_t s = 0; s < held.size; ++s)
    scales.fc2.push_back(by_expert.fc2[expert_in(held.begin + s)]);
  layer_->set_scales(std::move(scales));
  needs_calibration_ = false;
}

void RankLayer::update_expert(std::int64_t e, const checkpoint::ExpertWeights& expert) {
  constexpr std::string_view kUpdate = "update_expert";
  std::vector<PreparedUpdate> prepared;
  guarded(group_, kUpdate, [&] {
    require(e >= 0 && e < num_experts_, "update_expert: expert ", e, " is outside 0..",
            num_experts_ - 1, ", the routed experts of this layer");
    if (options_.balanced)  // each rank keeps them all
      layer_->check_room(kUpdate, updates_->bytes_beside(e) + bytes_of(expert),
                         "newest weights of the replaced ones, which may migrate here");
    const Shard held = held_by(group_.rank());
    for (std::int32_t slot : slots_.replicas(e))
      if (slot >= held.begin && slot < held.begin + held.size)
        prepared.push_back(layer_->prepare_update(slot, expert));
  });
  const comm::Agreed asked[] = {{"the expert", cat(e)},
                                {"weights whose digest", digest_of(expert)}};
  comm::agree(group_, asked, kUpdate);
  // All ranks can: from here on only a GPU fails, and the others must not go on without it.
  comm::or_abort(group_, [&] {
    for (PreparedUpdate& update : prepared) layer_->commit_update(std::move(update));
  });
  if (options_.balanced) updates_->put(e, expert);  // it may migrate to any rank
}

}  // namespace switchyard::layer
