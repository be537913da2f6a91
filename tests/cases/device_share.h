// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "tests/cases/share_case.h"

namespace switchyard::test {

/// What routing said of a call's tokens. Shapes: ids, weights [tokens, k].
struct Chosen {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

/// The choices of a layer on cuda, as its own forward makes them.
Chosen chosen_on_device(Call& call);

/// What a rank's part on cuda makes of the tokens, in fp32 and unweighted: rows, the shared shard,
/// local ids and weights as share_of() has them, fused shared experts behind the choices. `out` and
/// the second quantiser's inputs stay empty. An empty TP shard has no local ids: its rows are zero.
Share device_share_of(const layer::Layer& part, const Call& call, const Chosen& chosen);

}  // namespace switchyard::test
