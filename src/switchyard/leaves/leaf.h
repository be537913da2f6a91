// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "switchyard/base/device.h"
#include "switchyard/core/deployment.h"
#include "switchyard/core/eligibility.h"
#include "switchyard/core/identity.h"
#include "switchyard/core/problem.h"
#include "switchyard/formats/matrix.h"

namespace switchyard::ops {
struct ExpertFfn;  // ops/grouped_ffn/grouped_ffn.h: the table of functions that executes a format
}

namespace switchyard::leaves {

/// One native implementation of one format on one device; all of it is compile-time data.
struct Leaf {
  Identity4 id;
  Device device = Device::kCpu;
  std::string_view doc;           // one sentence for the README
  formats::WeightLayout weights;  // how --format stores a weight matrix
  formats::ActivationQuant activation = formats::ActivationQuant::kNone;  // of FC1 and FC2 inputs
  /// Pure: reads only its arguments.
  Eligibility (*can_implement)(const Problem&, const Deployment&) = nullptr;
  /// What executes it; null while the kernels of this device are not built (path_not_enabled).
  const ops::ExpertFfn* ffn = nullptr;
};

/// The CPU and CUDA leaf of one format; one file of leaves/ defines one.
struct FormatLeaves {
  Leaf cpu;
  Leaf cuda;
};

}  // namespace switchyard::leaves
