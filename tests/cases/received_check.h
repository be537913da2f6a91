// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "tests/cases/exchange_case.h"

namespace switchyard::test {

/// Compares what `rank` received with what the strategy's layout and all ranks' inputs say, by
/// plain loops: segments one by one, count of rows, where each row lies, every byte of hidden
/// states and scales, every id and weight (-1 and 0 for choices of other ranks), statistics, wire
/// form, alignment. Empty when all of it is right, else the first difference.
std::string received_fault(const comm::Received& got, const comm::Strategy& strategy,
                           std::span<const ExchangeInput> inputs, int rank);

}  // namespace switchyard::test
