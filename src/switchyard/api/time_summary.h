// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "switchyard/api/bench.h"

namespace switchyard {

/// Quantiles and the least of the times of calls. Units: those of `times`, of which there is one.
TimeSummary summary_of(const std::vector<double>& times);

}  // namespace switchyard
