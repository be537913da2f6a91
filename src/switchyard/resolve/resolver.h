// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/resolve/report.h"

namespace switchyard::resolve {

/// Asks every candidate leaf, in order and without stopping at the first yes, and reports all
/// answers.
///
/// Candidates: the leaves that a pin names, else every leaf; those of the preferred device come
/// first, else those of the deployment's. Each is asked about the deployment placed on its own
/// device. Reads no machine fact outside `deployment.env`; warns when a preference cannot be kept.
/// Errors: UsageError for an incomplete problem, a malformed or contradictory request. "Nothing can
/// serve" is no error: the report then has no winner.
Report resolve(Problem problem, const Deployment& deployment, const Request& request = {});

/// Completes `sketch`, resolves it, and reports what was assumed.
/// Errors: those of complete() and of the other resolve().
Report resolve(const ProblemSketch& sketch, const Deployment& deployment,
               const Request& request = {});

/// The precision of the combine that is asked of `problem`: that of SWITCHYARD_COMBINE_PRECISION
/// where it names one for every layer, else the layer's own.
CombinePrecision asked_combine(const Problem& problem, const Deployment& deployment);

/// What the winner is to run.
/// Errors: UsageError when the report has no winner, with every rejection.
Plan make_plan(const Report& report);

}  // namespace switchyard::resolve
