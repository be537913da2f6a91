// SPDX-License-Identifier: Apache-2.0
// What a rank's schedulers have in common: the workspace, the experts' calls, the counts, and the
// order of a forward.
#include <algorithm>
#include <functional>

#include "switchyard/base/check.h"
#include "switchyard/base/float_env.h"
#include "switchyard/layer/latent.h"
#include "switchyard/layer/rank_scratch.h"
#include "switchyard/layer/run_experts.h"

namespace switchyard::layer {
namespace {

/// Dtype in which the experts can write a wire form themselves; F32 where it is encoded after them.
Dtype written_dtype(comm::Wire wire) {
  return wire == comm::Wire::kBf16   ? Dtype::kBf16
         : wire == comm::Wire::kFp16 ? Dtype::kFp16
                                     : Dtype::kF32;
}

bool written_in_place(comm::Wire wire) {
  return wire != comm::Wire::kFp8 && wire != comm::Wire::kNvfp4;
}

}  // namespace

RankLayer::Scratch RankLayer::take_scratch(Arena& arena) const {
  const std::size_t capacity = std::size_t(options_.capacity), width = std::size_t(shape_.hidden);
  Scratch s;
  s.parts = take_parts(arena, *layer_, options_.capacity, shape_);
  const bool finalizes = options_.finalize.run != nullptr;
  if (finalizes || !written_in_place(wire_)) s.sums = arena.take<float>(capacity * width);
  const std::size_t choices = capacity * std::size_t(layer_->routed().shape.top_k);
  if (finalizes) {
    s.rows = arena.take<std::byte>(choices * width * size_of(payload_.dtype));
    s.index = arena.take<std::int32_t>(choices);
  }
  const bool as_chosen =
      options_.slot_experts.empty() && (reduction_ || layer_->problem().routing.zero_experts == 0);
  s.placed = as_chosen ? s.parts.ids : arena.take<std::int32_t>(choices);
  if (reduction_) {
    s.local_ids = arena.take<std::int32_t>(choices);
    s.local_weights = arena.take<float>(choices);
  }
  s.counts = arena.take<std::int32_t>(counts_.size());
  const std::size_t sent = std::size_t(chunk());
  if (payload_.quantised() && !reduction_) {
    s.stage = arena.take<float>(std::size_t(layer_->options().pool->size()) * width);
    s.code_rows = arena.take<const std::byte*>(capacity);
    s.scale_rows = arena.take<const std::byte*>(capacity);
  }
  if (payload_.quantised() && exchange_) {
    s.codes = arena.take<std::byte>(sent * std::size_t(payload_.row_bytes));
    s.scales = arena.take<std::byte>(sent * std::size_t(payload_.scale_bytes));
  }
  s.routed = {s.parts.ids, s.parts.weights, layer_->routed().shape.top_k,
              layer_->problem().routed_scaling_factor};
  return s;
}

std::size_t RankLayer::workspace_bytes() const {
  if (device_) return device_->workspace_bytes();
  Arena arena;
  take_scratch(arena);
  return arena.used();
}

bool RankLayer::canaries_intact() const {
  if (device_) return true;
  return exchange_    ? exchange_->canaries_intact()
         : reduction_ ? reduction_->canaries_intact()
                      : mega_->canaries_intact();
}

/// Shares that the experts could not write as they travel.
void RankLayer::encode_shares(const Rows& r, const Scratch& scratch) const {
  const bool finalizes = options_.finalize.run != nullptr;
  if (!finalizes && written_in_place(wire_)) return;
  const std::int64_t width = shape_.hidden, k = shape_.top_k;
  if (finalizes) {
    for (std::int64_t i = 0; i < r.count * k; ++i)
      scratch.index[std::size_t(i)] = r.ids[i] < 0 ? -1 : std::int32_t(i);
    options_.finalize.run(options_.finalize.context, {.tokens = r.count,
                                                      .choices = k,
                                                      .width = width,
                                                      .rows = scratch.rows.data(),
                                                      .weights = r.weights,
                                                      .index = scratch.index.data(),
                                                      .sum = scratch.sums.data()});
    for (std::int64_t i = 0; i < r.count * width; ++i) {
      float& v = scratch.sums[std::size_t(i)];
      v *= r.factor;
      if (r.addend != nullptr) v += r.addend[i];
    }
  }
  for (std::int64_t i = 0; i < r.count; ++i)
    comm::encode_row(wire_, scratch.sums.data() + i * width, width, r.shares + i * r.share_stride);
}

void RankLayer::run_rows(const Rows& r, const Scratch& scratch) const {
  const ExpertBank& bank = layer_->routed();
  const Dtype y_dtype = written_dtype(wire_);
  ops::FfnArgs f;
  f.shape = &shape_;
  f.layout = &bank.layout;
  f.packed = bank.packed.data();
  f.fc1_input_scale = bank.scales.fc1;
  f.activation = bank.activation.data();
  f.tokens = r.count;
  f.x_dtype = payload_.dtype;
  f.x = r.hidden;
  f.x_stride = r.hidden_stride / std::int64_t(size_of(f.x_dtype));
  f.x_rows = r.apart;
  f.ids = r.ids;
  f.weights = r.weights;
  const bool finalizes = options_.finalize.run != nullptr;
  if (finalizes || r.unfinalised != nullptr) {
    f.rows = finalizes ? scratch.rows.data() : r.unfinalised;
    f.rows_dtype = payload_.dtype;
  } else {
    const bool direct = written_in_place(wire_);
    f.factor = r.factor;
    f.addend = r.addend;
    f.out_dtype = y_dtype;
    f.out = direct ? static_cast<void*>(r.shares) : scratch.sums.data();
    f.out_stride = direct ? r.share_stride / std::int64_t(size_of(y_dtype)) : shape_.hidden;
  }
  f.pool = layer_->options().pool.get();
  f.isa = layer_->options().isa;
  f.workspace = scratch.parts.stage;
  run_experts({kExpertsCall, layer_->options().leaf, &tactics_, tape_,
               trace_ != nullptr ? &trace_->experts : nullptr},
              f);
  if (r.unfinalised == nullptr) encode_shares(r, scratch);
}

/// What the routed experts read of this rank's tokens.
void RankLayer::find_input(const ForwardArgs& a, Scratch& s) const {
  if (layer_->latent() == nullptr) {
    s.x = {static_cast<const std::byte*>(a.hidden),
           a.hidden_stride * std::int64_t(size_of(layer_->options().dtype))};
    return;
  }
  if (a.tokens > 0)
    project_down(*layer_, {a, layer_->options().dtype, /*rounds=*/true}, s.parts.latent.data(),
                 s.parts.stage);
  s.x = {reinterpret_cast<const std::byte*>(s.parts.latent.data()), shape_.hidden * 4};
}

RankLayer::Finisher RankLayer::finisher(const ForwardArgs& a, const Scratch& s) const {
  Finisher f{.x = s.x, .x_dtype = payload_.dtype, .width = shape_.hidden};
  const bool latent = layer_->latent() != nullptr;
  f.out = latent ? s.parts.latent_sum.data() : a.out;
  f.out_dtype = latent ? Dtype::kF32 : layer_->options().dtype;
  f.out_stride = latent ? shape_.hidden : a.out_stride;
  if (reduction_) return f;  // the shares hold everything else
  f.factor = s.routed.factor;
  if (layer_->shared() != nullptr && !latent) f.shared = s.parts.shared_out.data();
  if (layer_->problem().routing.zero_experts > 0) f.zero = &s.routed;
  f.num_experts = num_experts_;
  return f;
}

/// From the sums in latent space to the output.
void RankLayer::end_latent(const ForwardArgs& a, const Scratch& s) const {
  if (layer_->latent() == nullptr || a.tokens == 0) return;
  project_up(*layer_, a, s.parts.latent_sum.data(),
             layer_->shared() != nullptr ? s.parts.shared_out.data() : nullptr, s.parts.stage);
}

/// What this rank's tokens ask of each expert. Zero experts are nobody's load.
void RankLayer::count_choices(const ForwardArgs& a, Scratch& s) {
  note(RankStep::kDoneWait);
  cycle_.done_wait();  // migrations are collective calls: none can be under way here
  note(RankStep::kCount);
  std::fill(s.counts.begin(), s.counts.end(), 0);
  const std::int64_t k = s.routed.width;
  for (std::int32_t id : s.routed.ids.first(std::size_t(a.tokens * k)))
    if (id >= 0 && id < num_experts_) ++s.counts[std::size_t(id)];
  cycle_.count();
}

/// The experts have run; of no matter to a layer whose slots never change.
void RankLayer::start_set() {
  if (!options_.balanced) return;
  note(RankStep::kStartSet);
  cycle_.start_set();
}

/// The counts of all ranks, as the exchange has carried them.
void RankLayer::gather_counts(const std::int32_t* stats) {
  note(RankStep::kGather);
  const std::size_t experts = counts_.size();
  for (std::size_t i = 0; i < experts * std::size_t(group_.size()); ++i)
    counts_[i % experts] += stats[i];
  cycle_.gathered();
}

void RankLayer::forward(const ForwardArgs& a) { guarded_run(a, nullptr); }

void RankLayer::forward(const ForwardArgs& a, const BehindLayer& behind) {
  ForwardArgs args = a;
  args.out = args.workspace.data();  // something to be there: it is not written
  args.out_stride = layer_->problem().hidden;
  guarded_run(args, &behind);
}

void RankLayer::wait(Stream stream) {
  if (device_) device_->wait(stream);
}

void RankLayer::check() {
  if (device_) device_->check();
}

void RankLayer::guarded_run(const ForwardArgs& a, const BehindLayer* behind) {
  const FloatEnvScope env;  // sums and roundings of the ranks are made on this thread
  const auto reading = layer_->reading();
  try {
    if (!device_) group_.check_alive("a forward");  // what is enqueued on a GPU looks itself
    if (order_) order_->begin(number_);
    if (options_.balanced) {
      note(RankStep::kStartWait);
      cycle_.start_wait();
    }
    run(a, behind);
    if (order_) order_->compare();
    if (options_.balanced) {
      note(RankStep::kDoneSet);
      cycle_.done_set();
    }
  } catch (...) {
    cycle_.reset();
    comm::abort_for_current(group_);  // or the others would wait for this rank
    throw;
  }
}

void RankLayer::run(const ForwardArgs& a, const BehindLayer* behind) {
  const Layer& layer = *layer_;
  require(behind == nullptr || options_.ending != Ending::kPlain,
          "forward: this layer ends plainly and has nothing behind it; build it with "
          "ending fused or reduce");
  require(a.tokens <= options_.capacity, "forward of ", a.tokens, " tokens on rank ", group_.rank(),
          " exceeds the capacity ", options_.capacity,
          "; split the batch or build the layer for more");
  require(
      a.unfinalised == nullptr,
      "an unfinalised output is one rank's; ranks take a finalize of the caller's when they are "
      "built");
  require(a.capture == nullptr || device_ != nullptr,
          "forward: a stage capture is one rank's; ask a layer on one rank for it");
  require(!needs_calibration_, "forward: format ", layer.problem().format,
          " has static activation scales and this layer has none; calibrate it first, or ask for "
          "activations = bf16");
  check_forward(layer, a);
  write_trace(layer, a);
  tape_ = a.tape, trace_ = a.trace;
  if (tape_ != nullptr) tape_->start();
  if (a.trace != nullptr) a.trace->leaf = leaf_id();
  if (device_) return device_->forward(a, behind);
  Arena arena(a.workspace);
  Scratch scratch = take_scratch(arena);
  note(RankStep::kRoute);
  if (a.tokens > 0) choose_experts(layer, a, scratch.parts, scratch.routed);
  append_shared(layer, a, scratch.routed);
  if (options_.balanced) count_choices(a, scratch);
  note(RankStep::kPlace);
  if (scratch.placed.data() != scratch.parts.ids.data())
    place(a.tokens, a.hidden, a.hidden_stride * std::int64_t(size_of(layer.options().dtype)),
          scratch.routed.ids, scratch.placed);
  if (options_.balanced) cycle_.route();
  find_input(a, scratch);
  if (fused_)
    finish_fused(a, scratch, behind);
  else
    reduction_ ? reduce(a, scratch) : mega_ ? fuse(a, scratch) : exchange(a, scratch);
  end_latent(a, scratch);
  report_routing(layer, a, scratch.routed);
  layer.load_counter().add(scratch.routed.ids.data(), a.tokens, layer.problem().top_k(),
                           scratch.routed.width);
}

}  // namespace switchyard::layer
