// SPDX-License-Identifier: Apache-2.0
// The tactics of the CPU twin: what is planned, what is worth a try, what is possible at all.
#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/ops/grouped_ffn/ffn_plan.h"
#include "switchyard/ops/grouped_ffn/ffn_work.h"

namespace switchyard::ops {
namespace {

constexpr std::int64_t kMostCuts = 16;

std::int64_t panels_of(std::int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows; }

/// As many rows in one pass over a task's weights as there is room for, 128 at most.
std::int64_t row_block_for(std::int64_t fc1_panels) {
  return std::min<std::int64_t>(128, kMostFc1Values / fc1_panels);
}

/// Whether every thread gets a task of each GEMM.
bool fills_threads(const FfnCall& call, const PanelTactic& t) {
  const FfnWork work(*call.shape, call.tokens);
  const double fc1 = work.experts * double(panels_of(call.shape->inter)) / double(t.fc1_panels);
  const double fc2 = double(panels_of(call.shape->hidden)) / double(t.fc2_panels);
  return std::min(fc1, fc2) >= call.threads;
}

/// What is wrong with a tactic; empty where nothing is. A forward asks, so that allocates nothing.
std::string fault_of(const FfnCall& call, const Tactic& tactic) {
  const auto* t = std::get_if<PanelTactic>(&tactic);
  if (t == nullptr) return "it is of a GPU's tiles, and the cpu runs panels";
  const std::int64_t rows = call.tokens * call.shape->top_k, most = most_fc2_panels(rows);
  if (t->fc1_panels < 1 || t->fc1_panels > kMostFc1Panels)
    return cat("fc1_panels is outside 1..", kMostFc1Panels);
  if (t->fc2_panels < 1 || t->fc2_panels > most)
    return cat("fc2_panels is outside 1..", most, ", the limit for ", rows, " rows");
  if (t->cuts < 1 || t->cuts > kMostCuts) return cat("cuts is outside 1..", kMostCuts);
  if (t->row_block < 1 || t->row_block > kMostFc1Values / t->fc1_panels)
    return cat("row_block is outside 1..", kMostFc1Values / t->fc1_panels, ", the limit for ",
               t->fc1_panels, " panels");
  return "";
}

/// Candidates that differ from each other.
class Candidates {
 public:
  explicit Candidates(const FfnCall& call)
      : call_(call), plan_(std::get<PanelTactic>(plan_panels(call))), list_{plan_} {}

  const PanelTactic& plan() const { return plan_; }
  void add(const PanelTactic& t) {
    const bool fits = t.fc2_panels <= most_fc2_panels(call_.tokens * call_.shape->top_k) &&
                      t.fc1_panels * t.row_block <= kMostFc1Values;
    if (fits && std::find(list_.begin(), list_.end(), Tactic(t)) == list_.end()) list_.push_back(t);
  }
  /// The plan with one field set to each of `values`.
  void vary(std::int64_t PanelTactic::*field, std::initializer_list<std::int64_t> values) {
    for (std::int64_t value : values) {
      PanelTactic t = plan_;
      t.*field = value;
      add(t);
    }
  }
  std::vector<Tactic> take() { return std::move(list_); }

 private:
  const FfnCall& call_;
  PanelTactic plan_;
  std::vector<Tactic> list_;
};

}  // namespace

std::int64_t most_fc2_panels(std::int64_t rows) {
  std::int64_t panels = kMostFc2Panels;
  while (panels > 1 && panels * rows > kMostFc2Values) panels /= 2;
  return panels;
}

Tactic plan_panels(const FfnCall& call) {
  const FfnShape& s = *call.shape;
  const std::int64_t rows = call.tokens * s.top_k, tasks = 4 * call.threads;
  PanelTactic t;
  // Few rows want long streams of weights, as long as every thread has some tasks; many rows want
  // their sums near, but tiles gather their rows once a call and like it long.
  constexpr std::int64_t kLongFc1 = 16, kLongFc2 = 8;
  constexpr std::int64_t kLongFc1Rows = 128, kLongFc2Rows = 1024, kNarrowFc2Rows = 16384;
  const bool floats = ffn_sizes(s, call.tokens, call.isa).floats;
  const bool four_bits = formats::bits_of(s.weights.element) == 4 && !floats;
  const bool tiles = panel_twin(call.isa).tier == CpuIsa::kAmx && !floats;
  if ((rows <= kLongFc1Rows ? four_bits : tiles) &&
      s.top_k * panels_of(s.inter) >= kLongFc1 * tasks)
    t.fc1_panels = kLongFc1;
  if (rows > kNarrowFc2Rows) t.fc2_panels = 1;
  if (rows <= (tiles ? kNarrowFc2Rows : kLongFc2Rows) && s.hidden >= kLongFc2 * kPanelRows * tasks)
    t.fc2_panels = std::min(kLongFc2, most_fc2_panels(rows));
  t.row_block = row_block_for(t.fc1_panels);
  return t;
}

std::vector<Tactic> panel_candidates(const FfnCall& call) {
  Candidates out(call);
  for (std::int64_t fc1 : {4, 8, 16})
    for (std::int64_t fc2 : {2, 4, 8}) {
      PanelTactic t = out.plan();
      t.fc1_panels = fc1, t.fc2_panels = fc2, t.row_block = row_block_for(fc1);
      if (fills_threads(call, t)) out.add(t);
    }
  out.vary(&PanelTactic::cuts, {1, 2, 8});
  const double rows = FfnWork(*call.shape, call.tokens).rows_each;
  if (rows > 16) out.vary(&PanelTactic::row_block, {32, 64});
  return out.take();
}

void check_panel_tactic(const FfnCall& call, const Tactic& tactic) {
  const std::string fault = fault_of(call, tactic);
  if (!fault.empty()) throw UsageError(cat("tactic ", to_string(tactic), ": ", fault));
}

}  // namespace switchyard::ops
