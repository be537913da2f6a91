// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "switchyard/eplb/placement.h"
#include "switchyard/eplb/rearrange.h"

namespace switchyard::eplb {
namespace {

/// One change of a layout and what it is worth.
struct Step {
  double gain = 0;                  // decrease of the sum of squared rank loads, per move
  std::size_t slot = 0, other = 0;  // other: the slot to swap with
  std::int32_t expert = -1;         // what slot gets; -1: a swap
};

/// A layout that is improved in place. A step counts only when all ranks that it touches end below
/// what the heaviest rank has, so that the heaviest load, or the number of ranks that have it,
/// falls.
class Improver {
 public:
  explicit Improver(const ImproveArgs& args)
      : args_(args),
        slots_(args.before.begin(), args.before.end()),
        per_rank_(slots_.size() / std::size_t(args.num_ranks)),
        ranks_(std::size_t(args.num_ranks)),
        counts_(count_replicas(slots_, std::int64_t(args.loads.size()))) {
    update();
    mean_ = std::accumulate(rank_loads_.begin(), rank_loads_.end(), 0.0) / double(ranks_);
  }

  /// Takes the best step; 0 when none helps, otherwise its moves.
  std::int64_t step() {
    Step best;
    const std::size_t a = heaviest_;
    for (std::size_t x = a * per_rank_; x < (a + 1) * per_rank_; ++x) {
      for (std::size_t s = 0; s < slots_.size(); ++s) {
        consider_swap(x, s, best);
        consider_replica(slots_[x], s, best);
      }
      for (std::int32_t e = 0; counts_[at(slots_[x])] > 1 && e < std::int32_t(counts_.size()); ++e)
        consider_replica(e, x, best);
    }
    if (best.gain <= 0) return 0;
    if (best.expert < 0) {
      std::swap(slots_[best.slot], slots_[best.other]);
    } else {
      --counts_[at(slots_[best.slot])];
      ++counts_[at(best.expert)];
      slots_[best.slot] = best.expert;
    }
    update();
    return best.expert < 0 ? 2 : 1;
  }

  double balance() const { return mean_ > 0 ? heaviest_load() / mean_ : 1; }
  std::vector<std::int32_t> take() { return std::move(slots_); }

 private:
  static std::size_t at(std::int32_t expert) { return std::size_t(expert); }
  std::size_t rank(std::size_t slot) const { return slot / per_rank_; }
  double heaviest_load() const { return rank_loads_[heaviest_]; }
  bool holds(std::size_t r, std::int32_t e) const { return holds_[at(e) * ranks_ + r] != 0; }
  double weight(std::int32_t e) const { return args_.loads[at(e)] / counts_[at(e)]; }
  bool may_hold(std::size_t r, std::int32_t e) const {
    if (holds(r, e)) return false;
    const std::size_t ranks_of_node = ranks_ / std::size_t(args_.num_nodes);
    return args_.node_of_expert.empty() ||
           std::size_t(args_.node_of_expert[at(e)]) == r / ranks_of_node;
  }

  void update() {
    rank_loads_.assign(ranks_, 0.0);
    holds_.assign(ranks_ * counts_.size(), 0);
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      rank_loads_[rank(s)] += weight(slots_[s]);
      holds_[at(slots_[s]) * ranks_ + rank(s)] = 1;
    }
    heaviest_ =
        std::size_t(std::max_element(rank_loads_.begin(), rank_loads_.end()) - rank_loads_.begin());
  }

  void offer(Step step, double gain, Step& best) const {
    const double heavy = heaviest_load();
    step.gain = gain;
    // Equal gains up to rounding keep the first: the plan is the same on every machine.
    if (gain > best.gain * (1 + 1e-9) && gain > 1e-12 * heavy * heavy) best = step;
  }

  void consider_swap(std::size_t x, std::size_t y, Step& best) const {
    const std::size_t a = rank(x), b = rank(y);
    const double d = weight(slots_[x]) - weight(slots_[y]), la = rank_loads_[a],
                 lb = rank_loads_[b];
    if (a == b || d <= 0 || lb + d >= la) return;
    if (!may_hold(a, slots_[y]) || !may_hold(b, slots_[x])) return;
    double gain = la * la + lb * lb - (la - d) * (la - d) - (lb + d) * (lb + d);
    offer({.slot = x, .other = y}, gain / 2, best);
  }

  /// `expert` takes `slot` from an expert that has another one left.
  void consider_replica(std::int32_t expert, std::size_t slot, Step& best) const {
    const std::int32_t loser = slots_[slot];
    const std::size_t b = rank(slot);
    if (expert == loser || counts_[at(loser)] < 2 || !may_hold(b, expert)) return;
    const double lighter = args_.loads[at(expert)] / (counts_[at(expert)] + 1),
                 heavier = args_.loads[at(loser)] / (counts_[at(loser)] - 1),
                 limit = heaviest_load();
    const double swapped = lighter - weight(loser), more = heavier - weight(loser),
                 less = lighter - weight(expert);
    double gain = 0;
    for (std::size_t r = 0; r < ranks_; ++r) {
      const double old = rank_loads_[r];
      double load = old;
      if (r == b)
        load += swapped;
      else if (holds(r, loser))
        load += more;
      if (r != b && holds(r, expert)) load += less;
      if (load > old && load >= limit) return;
      gain += old * old - load * load;
    }
    offer({.slot = slot, .expert = expert}, gain, best);
  }

  const ImproveArgs& args_;
  std::vector<std::int32_t> slots_;
  std::size_t per_rank_, ranks_, heaviest_ = 0;
  std::vector<std::int32_t> counts_;
  std::vector<double> rank_loads_;
  std::vector<char> holds_;  // [expert][rank]: the inner loops run over ranks
  double mean_ = 0;
};

}  // namespace

std::vector<std::int32_t> improve(const ImproveArgs& args) {
  Improver improver(args);
  std::int64_t left = args.most_moves;
  while (left > 1 && improver.balance() > args.goal) {
    const std::int64_t moves = improver.step();
    if (moves == 0) break;
    left -= moves;
  }
  return improver.take();
}

}  // namespace switchyard::eplb
