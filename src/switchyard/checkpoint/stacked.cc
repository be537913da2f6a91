// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/stacked.h"

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/finite.h"
#include "switchyard/checkpoint/linear.h"
#include "switchyard/checkpoint/stacked_tensor.h"

namespace switchyard::checkpoint {
namespace {

/// Where the three projections of a family stand: FC1's tensor twice when gate and up share it.
struct Sides {
  StackedSide gate, up, down;
  bool has_gate = false;
};

Sides sides_of(const Family& family, const Problem& p, bool mxfp4_blocks) {
  const std::int64_t halves = p.gated() && family.stacked_gate.empty() ? 2 : 1;
  StackedSide fc1{.names = family.stacked_up,
                  .experts = p.num_experts(),
                  .rows = p.inter,
                  .cols = p.expert_hidden(),
                  .halves = halves};
  StackedSide fc2{.names = family.stacked_down,
                  .experts = p.num_experts(),
                  .rows = p.expert_hidden(),
                  .cols = p.inter};
  switch (family.stacked_order) {
    case StackedOrder::kRows:
    case StackedOrder::kSeparate:
      break;
    case StackedOrder::kColumns:
      fc1.place = fc2.place = Placement::kColumns;
      break;
    case StackedOrder::kInterleavedColumns:
      // The mxfp4 spelling of such a family is output-major and keeps gate and up alternating.
      fc1.place = mxfp4_blocks ? Placement::kInterleavedRows : Placement::kInterleavedColumns;
      fc2.place = mxfp4_blocks ? Placement::kRows : Placement::kColumns;
      break;
    case StackedOrder::kFlat:
      fc2.place = Placement::kColumns;
      fc1.flat = fc2.flat = true;
      break;
  }
  Sides out{.gate = fc1, .up = fc1, .down = fc2, .has_gate = p.gated()};
  out.up.half = halves - 1;
  if (!family.stacked_gate.empty()) out.gate.names = family.stacked_gate;
  return out;
}

/// A projection's run of elements in each expert's row of a stacked bias.
struct BiasRun {
  std::int64_t first = 0, step = 1, count = 0;
};

BiasSource bias_of(const Tensor& t, std::int64_t experts, std::int64_t expert, BiasRun run) {
  std::int64_t unit = bits_of(t.type) / 8;
  std::int64_t expert_bytes = std::int64_t(t.bytes.size()) / experts;
  return {t.bytes.data() + expert * expert_bytes + run.first * unit, t.type, run.count, run.step};
}

void add_biases(const BlockContext& c, std::vector<ExpertSources>& experts) {
  const Problem& p = c.problem;
  const std::int64_t halves = p.gated() ? 2 : 1, e_count = p.num_experts();
  std::string up_name, down_name;
  const Tensor* up = c.reader.want(with_suffix(c.family.stacked_up, "_bias"),
                                   {float_types(), {e_count, halves * p.inter}}, &up_name);
  const Tensor* down = c.reader.want(with_suffix(c.family.stacked_down, "_bias"),
                                     {float_types(), {e_count, p.expert_hidden()}}, &down_name);
  if (!up || !down) return;
  if (!check_floats(c.reader, *up, up_name) || !check_floats(c.reader, *down, down_name)) return;
  // Biases follow the even/odd rule of the columns, in the mxfp4 spelling too.
  bool interleaved = c.family.stacked_order == StackedOrder::kInterleavedColumns;
  std::int64_t step = interleaved ? halves : 1, second = interleaved ? 1 : p.inter;
  for (std::int64_t e = 0; e < std::int64_t(experts.size()); ++e) {
    ExpertSources& x = experts[std::size_t(e)];
    if (halves == 2) x.gate_bias = bias_of(*up, e_count, e, {0, step, p.inter});
    x.up_bias = bias_of(*up, e_count, e, {(halves - 1) * second, step, p.inter});
    x.down_bias = bias_of(*down, e_count, e, {0, 1, p.expert_hidden()});
  }
}

/// Every side of the block must have `scheme`.
void check_uniform(const BlockContext& c, const Scheme& scheme) {
  std::string_view name = alternatives(c.family.stacked_down).front();
  if (name.ends_with(".weight")) name.remove_suffix(7);
  std::string module = cat(c.reader.block(), ".", name);
  Scheme own = c.quantization.scheme_of(module);
  if (own == scheme) return;
  c.reader.fault(
      FindingKind::kContradiction, module,
      cat("module '", module, "' is declared ", own.format, " and its neighbour ", scheme.format,
          "; the routed experts of one layer must share a format, change the exclude list"));
}

bool is_served(const BlockContext& c, const Scheme& scheme) {
  switch (scheme.kind) {
    case SchemeKind::kNone:
      return true;
    case SchemeKind::kMxfp4Blocks:
      return c.family.mxfp4_blocks;
    case SchemeKind::kFp8Block:
      return c.family.stacked_order == StackedOrder::kRows ||
             c.family.stacked_order == StackedOrder::kSeparate;
    case SchemeKind::kFp8Tensor:
    case SchemeKind::kNvfp4:
      return c.family.stacked_order == StackedOrder::kRows ||
             c.family.stacked_order == StackedOrder::kColumns;
    case SchemeKind::kFp8Channel:
    case SchemeKind::kMxfp4:
      return false;
  }
  throw InternalError("a scheme kind is not covered");
}

bool scales_are_good(BlockReader& reader, const ExpertSources& e) {
  bool gate = !e.gate || check_scales(reader, *e.gate);
  bool up = check_scales(reader, e.up);
  return check_scales(reader, e.down) && up && gate;
}

std::vector<ExpertSources> cut(BlockReader& reader, const Sides& sides, const Scheme& scheme) {
  auto gate = sides.has_gate ? find_stack(reader, sides.gate, scheme) : std::nullopt;
  auto up = find_stack(reader, sides.up, scheme);
  auto down = find_stack(reader, sides.down, scheme);
  if ((sides.has_gate && !gate) || !up || !down) return {};
  std::vector<ExpertSources> out(std::size_t(sides.up.experts));
  for (std::int64_t e = 0; e < sides.up.experts; ++e) {
    ExpertSources& x = out[std::size_t(e)];
    if (gate) x.gate = gate->expert(e);
    x.up = up->expert(e);
    x.down = down->expert(e);
  }
  return out;
}

}  // namespace

std::vector<ExpertSources> find_stacked(const BlockContext& c, const Scheme& scheme) {
  check_uniform(c, scheme);
  if (!is_served(c, scheme)) {
    c.reader.fault(
        FindingKind::kContradiction, c.reader.block(),
        cat("block '", c.reader.block(), "' stacks its experts in one tensor and is declared ",
            scheme.format, ", a spelling that is not served for family ",
            alternatives(c.family.model_types).front(), "; store one tensor per expert"));
    return {};
  }
  bool blocks = scheme.kind == SchemeKind::kMxfp4Blocks;
  std::vector<ExpertSources> out = cut(c.reader, sides_of(c.family, c.problem, blocks), scheme);
  if (c.family.expert_bias) add_biases(c, out);
  bool good = true;
  for (const ExpertSources& e : out) good = scales_are_good(c.reader, e) && good;
  if (!good) out.clear();
  return out;
}

std::optional<ExpertSources> find_parallel(const BlockContext& c, BlockReader& reader,
                                           const Scheme& scheme, std::int64_t inter) {
  if (scheme.kind == SchemeKind::kMxfp4Blocks) {
    reader.fault(FindingKind::kContradiction, reader.block(),
                 cat("the MLP beside block '", c.reader.block(),
                     "' is declared mxfp4, which is served for experts stacked as *_blocks and "
                     "*_scales only; exclude it"));
    return {};
  }
  const std::int64_t hidden = c.problem.hidden;
  StackedSide fc1{.names = c.family.parallel.up,
                  .experts = 1,
                  .rows = inter,
                  .cols = hidden,
                  .halves = 2,
                  .flat = true};
  Sides sides{.gate = fc1,
              .up = fc1,
              .down = {.names = c.family.parallel.down,
                       .experts = 1,
                       .rows = hidden,
                       .cols = inter,
                       .flat = true},
              .has_gate = true};
  sides.up.half = 1;
  std::vector<ExpertSources> out = cut(reader, sides, scheme);
  if (out.empty() || !scales_are_good(reader, out[0])) return {};
  return std::move(out[0]);
}

}  // namespace switchyard::checkpoint
