// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard::tune {

/// Monotonic time. Units: µs.
double now_us();

/// The value below which `share` of the samples lie (nearest rank).
/// Errors: InternalError when there are no samples.
double percentile(std::vector<double> samples, double share);

}  // namespace switchyard::tune
