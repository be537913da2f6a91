// SPDX-License-Identifier: Apache-2.0
#include "switchyard/tune/tuner.h"

#include <algorithm>
#include <cmath>

#include "switchyard/base/check.h"
#include "switchyard/tune/timer.h"

namespace switchyard::tune {
namespace {

constexpr double kMedian = 0.5, kMicro = 1e6;
constexpr double kRoundsShare = 0.6;  // of the time; the rest is the duel's
constexpr double kHopeless = 1.15;    // medians beyond this times the best leave the rounds

/// Three standard errors of the median of `values`, from their median deviation.
double noise_of(const std::vector<double>& values, double median) {
  constexpr double kSigma = 1.4826, kOfMedian = 1.2533, kLeast = 0.005;
  std::vector<double> away;
  for (double v : values) away.push_back(std::abs(v - median));
  const double error =
      kSigma * kOfMedian * percentile(away, kMedian) / std::sqrt(double(values.size()));
  return std::max(kLeast, 3 * error);
}

/// The samples of each candidate that is still in the race.
class Rounds {
 public:
  Rounds(const Timed& timed, std::int64_t count) : timed_(timed), samples_(std::size_t(count)) {
    for (std::int64_t c = 0; c < count; ++c) left_.push_back(c);
  }

  /// Everyone once; who begins changes, so that nobody always follows the same one.
  void run(int round) {
    const std::size_t n = left_.size();
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t c = left_[(i + std::size_t(round)) % n];
      samples_[std::size_t(c)].push_back(timed_.time(c));
    }
  }
  double median(std::int64_t c) const { return percentile(samples_[std::size_t(c)], kMedian); }
  std::int64_t best() const {
    return *std::min_element(left_.begin(), left_.end(),
                             [&](std::int64_t a, std::int64_t b) { return median(a) < median(b); });
  }
  /// The plan's stays.
  void drop_hopeless() {
    const double limit = kHopeless * median(best());
    std::erase_if(left_, [&](std::int64_t c) { return c != 0 && median(c) > limit; });
  }

 private:
  const Timed& timed_;
  std::vector<std::vector<double>> samples_;
  std::vector<std::int64_t> left_;
};

}  // namespace

Duel duel(const Timed& timed, std::int64_t candidate, double seconds, const TunerLimits& limits) {
  const double begin = timed.elapsed();
  std::vector<double> theirs, plans, ratios;
  for (int pair = 0; pair < limits.most_pairs; ++pair) {
    if (pair >= limits.least_pairs && timed.elapsed() - begin > seconds * kMicro) break;
    const bool plan_first = pair % 2 == 0;
    if (plan_first) plans.push_back(timed.time(0));
    theirs.push_back(timed.time(candidate));
    if (!plan_first) plans.push_back(timed.time(0));
    ratios.push_back(theirs.back() / plans.back());
  }
  Duel out{.us = percentile(theirs, kMedian),
           .plan_us = percentile(plans, kMedian),
           .ratio = percentile(ratios, kMedian),
           .pairs = std::int64_t(ratios.size())};
  out.noise = noise_of(ratios, out.ratio);
  return out;
}

DuelSides duel_sides(const std::vector<Tactic>& plans, const std::vector<Tactic>& chosen,
                     const std::vector<Tactic>& here, std::size_t judged, const Tactic& winner) {
  ensure(plans.size() == here.size() && chosen.size() == here.size() && judged < here.size(),
         "a duel of ", plans.size(), ", ", chosen.size(), " and ", here.size(), " calls over call ",
         judged);
  DuelSides out{here, {}};
  for (std::size_t i = 0; i < here.size(); ++i)
    if (i != judged && chosen[i] != plans[i]) out.plan[i] = chosen[i];
  out.chosen = out.plan;
  out.chosen[judged] = winner;
  return out;
}

TunerResult search(const Timed& timed, std::int64_t count, const TunerLimits& limits) {
  ensure(count > 0, "a search among no candidates");
  const double end = timed.elapsed() + kRoundsShare * limits.seconds * kMicro;
  TunerResult out;
  Rounds rounds(timed, count);
  for (int round = 0; round < limits.most_rounds && count > 1; ++round) {
    if (round >= limits.least_rounds && timed.elapsed() > end) break;
    rounds.run(round);
    ++out.rounds;
    if (out.rounds >= limits.least_rounds) rounds.drop_hopeless();
  }
  const std::int64_t best = count > 1 ? rounds.best() : 0;
  for (std::int64_t c = 0; c < count && count > 1; ++c) out.medians.push_back(rounds.median(c));
  out.duel = duel(timed, best, (1 - kRoundsShare) * limits.seconds, limits);
  if (best != 0 && out.duel.faster()) out.best = best;
  return out;
}

}  // namespace switchyard::tune
