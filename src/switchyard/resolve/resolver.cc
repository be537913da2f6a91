// SPDX-License-Identifier: Apache-2.0
#include "switchyard/resolve/resolver.h"

#include <algorithm>

#include "switchyard/base/nearest.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/ops/grouped_gemm/panel.h"
#include "switchyard/resolve/backends.h"
#include "switchyard/resolve/warnings.h"

namespace switchyard::resolve {
namespace {

using leaves::Leaf;

class Resolver {
 public:
  Resolver(Problem problem, const Deployment& deployment, const Request& request) {
    report_.problem = std::move(problem);
    report_.problem.format = fold_format(report_.problem.format);
    report_.problem.check();
    deployment.check();
    report_.deployment = deployment;
    report_.requested = request;
    report_.warnings = deployment.env.warnings;
    report_.fingerprint = deployment.env.fingerprint();
  }

  Report run() {
    if (!request().prefer.empty()) preference_ = to_preference(request().prefer);
    if (preference_.rejection) report_.rejected.push_back(*preference_.rejection);
    for (const Leaf* leaf : candidates()) ask(*leaf);
    if (preference_.final) report_.eligible.clear();
    select();
    return std::move(report_);
  }

 private:
  const Request& request() const { return report_.requested; }

  bool pinned() const { return !request().leaf.empty() || request().device; }

  Device first_device() const {
    return request().device.value_or(preference_.device.value_or(report_.deployment.device));
  }

  std::vector<const Leaf*> candidates() const {
    IdentityQuery query;
    if (!request().leaf.empty()) query = leaves::parse_leaf_query(request().leaf);
    std::vector<const Leaf*> out;
    for (const Leaf* leaf : leaves::all_leaves_from(first_device()))
      if (query.matches(leaf->id) && leaf->device == request().device.value_or(leaf->device))
        out.push_back(leaf);
    require(!out.empty(), "leaf '", request().leaf, "' has no match on device ",
            to_string(first_device()), ", which is pinned too; drop one of the two pins");
    return out;
  }

  void ask(const Leaf& leaf) {
    Deployment placed = report_.deployment;
    placed.device = leaf.device;
    Eligibility verdict = leaf.can_implement(report_.problem, placed);
    if (verdict.eligible()) {
      report_.eligible.push_back(leaf.id.str());
    } else {
      report_.rejected.push_back({leaf.id.str(), verdict.reason(), verdict.detail()});
    }
  }

  void select() {
    if (report_.eligible.empty()) return;
    report_.winner = report_.eligible.front();
    const Leaf& winner = *leaves::find_leaf_by_id(report_.winner);
    bool as_preferred = preference_.device == winner.device;
    bool placed = winner.device == first_device() && !preference_.rejection;
    report_.selected_by = pinned()       ? SelectedBy::kPinned
                          : as_preferred ? SelectedBy::kPreferred
                                         : SelectedBy::kDefault;
    add_knobs(winner);
    if (pinned()) {
      if (!request().prefer.empty() && !as_preferred)
        add_warning(cat("preference ", request().prefer, " is overruled by the pin; running ",
                        report_.winner));
    } else if (!placed) {
      degrade();
    }
  }

  void degrade() {
    const Rejection& cause = weightiest();
    report_.degraded = true;
    report_.degraded_from = cause.candidate;
    std::string asked = request().prefer.empty()
                            ? cat("device ", to_string(report_.deployment.device))
                            : cat("preference ", request().prefer);
    add_warning(cat(asked, " cannot be kept: ", cause.candidate, "=", to_string(cause.reason), " (",
                    cause.detail, "); running ", report_.winner));
  }

  // A retired word itself, else the leaf of the right format where it was wanted; most leaves only
  // say that the format is another.
  const Rejection& weightiest() const {
    if (preference_.rejection) return *preference_.rejection;
    auto specific = [](const Rejection& r) { return r.reason != Reject::kQuantUnsupported; };
    auto at = std::find_if(report_.rejected.begin(), report_.rejected.end(), specific);
    ensure(!report_.rejected.empty(), "a degraded verdict without a rejection");
    return at != report_.rejected.end() ? *at : report_.rejected.front();
  }

  void add_knobs(const Leaf& winner) {
    const Problem& p = report_.problem;
    const Deployment& d = report_.deployment;
    auto quantiser = p.activations == ActivationMode::kFormat ? winner.activation
                     : p.activations == ActivationMode::kBf16 ? formats::ActivationQuant::kNone
                                                              : formats::ActivationQuant::kF32;
    add_knob("activations", cat(to_string(p.activations)), cat(formats::to_string(quantiser)));
    const std::string combine = cat(to_string(asked_combine(p, d)));
    add_knob("combine", combine, d.ranks() == 1 ? "none (one rank)" : combine);
    add_knob("cpu_isa", cat(d.env.flag("SWITCHYARD_CPU_ISA")),
             cat(to_string(ops::panel_twin(d.env.isa).tier)));
    add_knob("device", request().device ? cat(to_string(*request().device)) : "",
             cat(to_string(winner.device)));
    add_knob("slots", cat(d.slots), cat(d.num_slots(p.num_experts())));
  }

  void add_knob(std::string name, std::string requested, std::string effective) {
    report_.knobs.push_back({std::move(name), std::move(requested), std::move(effective)});
  }

  void add_warning(const std::string& text) {
    report_.warnings.push_back(text);
    warn(text);
  }

  Report report_;
  Preference preference_;
};

}  // namespace

CombinePrecision asked_combine(const Problem& p, const Deployment& d) {
  const std::string_view all = d.env.flag("SWITCHYARD_COMBINE_PRECISION");
  return all.empty() || all == "layer" ? p.combine : to_combine_precision(all);
}

Report resolve(Problem problem, const Deployment& deployment, const Request& request) {
  return Resolver(std::move(problem), deployment, request).run();
}

Report resolve(const ProblemSketch& sketch, const Deployment& deployment, const Request& request) {
  CompletedProblem completed = complete(sketch, deployment);
  Report report = resolve(std::move(completed.problem), deployment, request);
  report.assumed = std::move(completed.assumed);
  return report;
}

Plan make_plan(const Report& report) {
  require(!report.winner.empty(), "no leaf can serve format ", show_format(report.problem.format),
          ": ", summarise_rejections(report));
  Plan plan{.problem = report.problem,
            .deployment = report.deployment,
            .leaf = report.winner,
            .selected_by = report.selected_by,
            .fingerprint = report.fingerprint};
  const Leaf* leaf = leaves::find_leaf_by_id(report.winner);
  require(leaf != nullptr, "report names winner '", report.winner,
          "', which is not registered in this build; resolve again");
  plan.deployment.device = leaf->device;
  return plan;
}

}  // namespace switchyard::resolve
