// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/roof_slices.h"

#include "switchyard/base/check.h"
#include "switchyard/tune/timer.h"

namespace switchyard::api {

std::vector<RoofSlice> roof_slices(std::span<const tune::Roof> samples,
                                   std::span<const double> p50) {
  ensure(samples.size() == p50.size() + 1, "roof_slices: one sample more than parts");
  std::vector<RoofSlice> out;
  for (std::size_t i = 0; i < p50.size(); ++i)
    out.push_back({p50[i],
                   {(samples[i].gbps + samples[i + 1].gbps) / 2,
                    (samples[i].gflops + samples[i + 1].gflops) / 2}});
  return out;
}

double median_share(const LayerCost& cost, std::span<const RoofSlice> slices) {
  std::vector<double> shares;
  for (const RoofSlice& s : slices)
    shares.push_back(floor_us(cost, {s.roof.gbps, s.roof.gflops}) / s.p50);
  return tune::percentile(shares, 0.5);
}

}  // namespace switchyard::api
