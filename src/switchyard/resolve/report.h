// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/core/deployment.h"
#include "switchyard/core/eligibility.h"
#include "switchyard/core/plan.h"
#include "switchyard/core/problem.h"
#include "switchyard/core/sketch.h"

namespace switchyard::resolve {

/// What the caller asks for beside the problem and the deployment; all of it may be empty.
struct Request {
  std::string leaf{};              // pin: an id, or a query in any order; never degrades
  std::optional<Device> device{};  // pin; never degrades
  std::string prefer{};            // a device or an ancestor's backend word; may degrade, loudly
  std::string comm{};              // pin: what joins the ranks; the resolver only keeps it

  bool operator==(const Request&) const = default;
};

/// One candidate's no.
struct Rejection {
  std::string candidate;  // a leaf's id, or the backend word that was asked for
  Reject reason{};
  std::string detail;
  bool operator==(const Rejection&) const = default;
};

/// One communication strategy's verdict: `reason` is set when it cannot serve, and `detail` says
/// why; of one that can it says whether it is chosen, or what stands before it.
struct StrategyVerdict {
  std::string strategy;
  std::optional<Reject> reason;
  std::string detail;
  bool operator==(const StrategyVerdict&) const = default;
};

/// A knob as it was asked for, and what it amounts to under the winner.
struct Knob {
  std::string name;
  std::string requested;
  std::string effective;
  bool operator==(const Knob&) const = default;
};

/// The whole answer to one selection question, and the question itself.
struct Report {
  Problem problem;
  Deployment deployment;
  Request requested;
  std::string winner;  // a leaf's id; empty when nothing can serve
  SelectedBy selected_by = SelectedBy::kFailed;
  std::vector<std::string> eligible;        // in order of preference; the first is the winner
  std::vector<Rejection> rejected;          // in ask order
  std::vector<Assumption> assumed;          // fields that a sketch left open
  bool degraded = false;                    // the winner is not where it was asked for
  std::string degraded_from;                // the candidate whose no weighed most
  std::vector<Knob> knobs;                  // empty without a winner
  std::vector<StrategyVerdict> strategies;  // empty: none were asked
  std::vector<std::string> warnings;        // the environment's, then the resolver's own
  std::string fingerprint;

  bool operator==(const Report&) const = default;
};

/// The report for a terminal: winner, how, every rejection with reason and detail, assumptions,
/// knobs, warnings, fingerprint; ends in a newline.
std::string to_text(const Report& report);
/// One line for an error message: the rejections of leaves whose format matches, and how many
/// others there are.
std::string summarise_rejections(const Report& report);

}  // namespace switchyard::resolve
