// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/panel.h"

namespace switchyard::test {

/// panel_gemm_amx() with its tile instructions in plain C++: few machines have AMX, and its walk
/// over rows, panels and cuts is to be tested on all that have AVX-512.
/// Errors:  InternalError where the instruction would fault.
void panel_gemm_amx_emulated(const ops::PanelGemmArgs& args);

}  // namespace switchyard::test
