// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/panel_fixed.h"

#include <algorithm>

namespace switchyard::ops {

FixedForm fixed_form(const PanelLayout& layout, formats::ActivationQuant quant) {
  const int cols = int(std::min<std::int64_t>(layout.cut(), kPanelStep));
  return {.cols = cols, .digits = quant == formats::ActivationQuant::kNone ? 3 : 2};
}

}  // namespace switchyard::ops
