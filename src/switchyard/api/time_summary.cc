// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/time_summary.h"

#include <algorithm>

#include "switchyard/tune/timer.h"

namespace switchyard {

TimeSummary summary_of(const std::vector<double>& times) {
  return {.p50 = tune::percentile(times, 0.5),
          .p90 = tune::percentile(times, 0.9),
          .p99 = tune::percentile(times, 0.99),
          .least = *std::min_element(times.begin(), times.end()),
          .samples = std::int64_t(times.size())};
}

}  // namespace switchyard
