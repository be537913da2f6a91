// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/device_end.h"

#include <utility>

#include "switchyard/base/check.h"
#include "switchyard/base/device_pointer.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/fused_end.h"
#include "switchyard/layer/single_rank.h"
#include "switchyard/ops/grouped_ffn/device_stages.h"
#include "switchyard/ops/route/routing_io.h"

namespace switchyard::layer {
namespace {

/// Expert rows, weights and the shared shard wait for an all-reduce that finalizes them.
bool keeps_rows(Ending e) { return e != Ending::kPlain; }

void check_behind(const BehindLayer& b) {
  const std::pair<std::string_view, const void*> arrays[] = {{"residual_in", b.residual_in},
                                                             {"rms_gamma", b.rms_gamma},
                                                             {"residual_out", b.residual_out},
                                                             {"norm_out", b.norm_out}};
  for (const auto& [name, p] : arrays)
    require(p == nullptr || device_can_read(p), "forward: ", name,
            " is no memory of the current GPU; copy it there");
}

}  // namespace

/// The parts of a forward's workspace.
struct DeviceEnd::Scratch {
  DeviceParts parts;
  std::span<std::int32_t> local_ids, index;
  std::span<float> local_weights, row_weights, scales;
  std::span<std::uint16_t> share;   // [capacity, H], in the dtype: of a plain ending
  std::span<std::uint16_t> rows;    // [capacity * k, H]
  std::span<std::uint16_t> shared;  // [capacity, H]: the shard, rounded
  std::span<std::uint16_t> dense;   // [held, capacity, H]: rows by expert
  std::span<std::uint16_t> sum;     // [capacity, H]: of an output whose rows lie apart
};

DeviceEnd::Scratch DeviceEnd::take_scratch(Arena& arena) const {
  const ops::FfnShape& s = part_.routed().shape;
  const auto tokens = std::size_t(args_.capacity), choices = tokens * std::size_t(s.top_k);
  const std::size_t row = std::size_t(s.hidden);
  Scratch out;
  out.parts = take_device_parts(arena, part_, args_.capacity);
  out.local_ids = arena.take<std::int32_t>(choices);
  out.local_weights = arena.take<float>(choices);
  out.sum = arena.take<std::uint16_t>(tokens * row);
  if (!keeps_rows(args_.ending)) {
    out.share = arena.take<std::uint16_t>(tokens * row);
    return out;
  }
  out.rows = arena.take<std::uint16_t>(choices * row);
  out.row_weights = arena.take<float>(choices);
  out.index = arena.take<std::int32_t>(choices);
  if (part_.shared() != nullptr) out.shared = arena.take<std::uint16_t>(tokens * row);
  if (args_.ending != Ending::kReduce) return out;
  const std::size_t held = std::size_t(s.experts);
  out.dense = arena.take<std::uint16_t>(held * tokens * row);
  out.scales = arena.take<float>(held * tokens);
  return out;
}

DeviceEnd::DeviceEnd(comm::Group& group, const Layer& part, const Args& args)
    : part_(part), args_(args) {
  constexpr std::string_view kPhase = "end of the layer on GPUs";
  const Problem& p = part.problem();
  const Dtype dtype = part.options().dtype;
  // What can fail on one rank alone, before anybody waits for it.
  comm::guarded(group, kPhase, [&] {
    local_.emplace(args.local.size() * sizeof(std::int32_t));
    local_->upload(args.local.data());
    if (!keeps_rows(args.ending)) return;
    FusedEnd::check(p, {.ending = args.ending,
                        .capacity = args.capacity,
                        .held = part.routed().shape.experts,
                        .fuses_shared = part.options().fuse_shared,
                        .dtype = dtype});
    const std::vector<std::byte> zeros(std::size_t(args.capacity * p.hidden) * size_of(dtype));
    nothing_.emplace(zeros.size());
    nothing_->upload(zeros.data());
  });
  reduce_.emplace(group, comm::AllReduceCapacity{group.size(), args.capacity, p.hidden, dtype},
                  comm::DeviceAllReduceOptions{.shared_device = args.shared_device});
  group.barrier(kPhase);  // nobody calls while another one still allocates
}

std::size_t DeviceEnd::workspace_bytes() const {
  Arena arena;
  take_scratch(arena);
  return arena.used();
}

/// The rank's experts on all tokens: its share, or their rows.
void DeviceEnd::run_experts(const ForwardArgs& a, const Scratch& s, float factor) const {
  const Dtype dtype = part_.options().dtype;
  const bool shared = part_.shared() != nullptr;
  if (shared) run_shared_on_device(part_, a, s.parts);
  ops::FfnArgs f = routed_on_device(part_, a, s.parts);
  f.ids = s.local_ids.data();
  f.weights = s.local_weights.data();
  if (keeps_rows(args_.ending)) {
    f.rows = s.rows.data();
    f.rows_dtype = dtype;
  } else {
    f.factor = factor;
    f.addend = shared ? s.parts.shared_out.data() : nullptr;
    f.out = s.share.data();
    f.out_dtype = dtype;
    f.out_stride = part_.problem().hidden;
  }
  if (keeps_rows(args_.ending) && shared)
    ops::round_rows_cuda({.rows = s.parts.shared_out.data(),
                          .count = a.tokens * part_.problem().hidden,
                          .dtype = dtype,
                          .out = s.shared.data()},
                         a.stream);
  run_routed_on_device(part_, a, f);
}

ops::MoeFinalizeSource DeviceEnd::rows_by_choice(const ForwardArgs& a, const Scratch& s,
                                                 float factor) const {
  const ops::FfnShape& shape = part_.routed().shape;
  ops::report_routing_cuda({.tokens = a.tokens,
                            .top_k = shape.top_k,
                            .width = shape.top_k,
                            .experts = shape.experts,
                            .zero_experts = shape.zero_experts,
                            .ids = s.local_ids.data(),
                            .weights = s.local_weights.data()},
                           {.row_weights = s.row_weights.data(),
                            .row_index = s.index.data(),
                            .weight_on_input = shape.weight_on_input},
                           a.stream);
  return {.rows = s.rows.data(),
          .num_rows = a.tokens * shape.top_k,
          .expanded_idx_to_permuted_idx = s.index.data(),
          .top_k = shape.top_k,
          .expert_scale_factor = s.row_weights.data(),
          .routed_scaling_factor = factor,
          .shared_expert_output = s.shared.data()};
}

ops::MoeReductionSource DeviceEnd::rows_by_expert(const ForwardArgs& a, const Scratch& s,
                                                  float factor) const {
  const ops::FfnShape& shape = part_.routed().shape;
  ops::spread_rows_cuda({.rows = s.rows.data(),
                         .ids = s.local_ids.data(),
                         .weights = shape.weight_on_input ? nullptr : s.local_weights.data(),
                         .tokens = a.tokens,
                         .top_k = shape.top_k,
                         .hidden = shape.hidden,
                         .experts = shape.experts,
                         .dense = s.dense.data(),
                         .scales = s.scales.data()},
                        a.stream);
  return {.active_experts_token_input = s.dense.data(),
          .scale_input = s.scales.data(),
          .num_experts = shape.experts,
          .token_input = s.shared.data(),
          .routed_scaling_factor = factor};
}

void DeviceEnd::finish(const ForwardArgs& a, const Scratch& s, float factor,
                       const BehindLayer& behind) {
  const ops::CallShape shape{
      .tokens = a.tokens, .hidden = part_.problem().hidden, .dtype = part_.options().dtype};
  const ops::NormArgs norm = norm_args(behind);
  if (args_.ending == Ending::kReduce)
    return comm::allreduce_fusion(
        *reduce_, ops::MoEReductionArgs{shape, rows_by_expert(a, s, factor), nullptr, norm},
        a.stream);
  comm::allreduce_fusion(*reduce_, ops::MoEFinalizeArgs{shape, rows_by_choice(a, s, factor), norm},
                         a.stream);
}

void DeviceEnd::forward(const ForwardArgs& a, const BehindLayer* behind) {
  reduce_->check();  // behind a trouble nothing more is enqueued
  check_device_call(part_, a);
  if (behind != nullptr) check_behind(*behind);
  Arena arena(a.workspace);
  const Scratch s = take_scratch(arena);
  const std::int64_t hidden = part_.problem().hidden, width = part_.routed().shape.top_k;
  const float factor = pending_factor(part_, a);  // told to one another of no tokens too
  if (a.tokens > 0) {
    choose_on_device(part_, a, s.parts);
    ops::localise_cuda({.ids = s.parts.ids.data(),
                        .weights = s.parts.weights.data(),
                        .count = a.tokens * width,
                        .table = static_cast<const std::int32_t*>(local_->data()),
                        .size = std::int64_t(args_.local.size()),
                        .local_ids = s.local_ids.data(),
                        .local_weights = s.local_weights.data()},
                       a.stream);
    run_experts(a, s, factor);
    report_on_device(part_, a, s.parts);
  }
  if (behind != nullptr) return finish(a, s, factor, *behind);
  const bool dense = a.out != nullptr && a.out_stride == hidden;
  void* to = dense ? a.out : s.sum.data();
  if (keeps_rows(args_.ending)) {
    finish(a, s, factor,
           {.residual_in = nothing_->data(), .rms_gamma = nothing_->data(), .residual_out = to});
  } else {
    comm::allreduce_fusion(
        *reduce_,
        ops::AllReduceArgs{{.tokens = a.tokens, .hidden = hidden, .dtype = part_.options().dtype},
                           {s.share.data()},
                           to},
        a.stream);
  }
  if (!dense && a.tokens > 0)
    ops::copy_rows_cuda({.from = s.sum.data(),
                         .to = static_cast<std::uint16_t*>(a.out),
                         .rows = a.tokens,
                         .cols = hidden,
                         .stride = a.out_stride},
                        a.stream);
}

}  // namespace switchyard::layer
