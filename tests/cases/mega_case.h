// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "switchyard/layer/mega_moe.h"
#include "tests/cases/exchange_case.h"

namespace switchyard::test {

/// The fused exchange for the same rows as an exchange of that shape; row and scale bytes are the
/// payload's.
layer::MegaShape mega_shape(const comm::ExchangeShape& shape, Payload payload);

/// What one rank brings to a run of the fused exchange whose experts are played.
struct MegaRound {
  const ExchangeInput& input;
  int rank = 0;
  /// What the experts make of the rows that they read; kBf16: they take them as they are.
  PayloadKind quantised_by_experts = PayloadKind::kBf16;
  const layer::MegaArgs* args = nullptr;  // instead of the input's
  std::int64_t* rows = nullptr;           // to be added to: rows that the experts of `rank` got
};

/// Writes the tokens where the others read them, and runs. The statistics of all ranks.
std::vector<std::int32_t> run_mega(layer::MegaMoe& mega, const MegaRound& round, SumCollector& got);

}  // namespace switchyard::test
