// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/core/eligibility.h"
#include "switchyard/formats/matrix.h"

namespace switchyard::ops {

/// Whether a projection of weights stored like this can be computed; the reason names the storage.
Eligibility can_project(const formats::WeightLayout& weights);

}  // namespace switchyard::ops
