// SPDX-License-Identifier: Apache-2.0
#include "switchyard/tune/timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "switchyard/base/check.h"

namespace switchyard::tune {

double now_us() {
  using namespace std::chrono;
  return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

double percentile(std::vector<double> samples, double share) {
  ensure(!samples.empty(), "percentile of no samples");
  std::sort(samples.begin(), samples.end());
  const double rank = std::ceil(share * double(samples.size()));
  return samples[std::size_t(std::clamp(rank - 1, 0.0, double(samples.size() - 1)))];
}

}  // namespace switchyard::tune
