// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_ffn/device_stages.h"

/// Part of sort_and_gather_cuda(), in a file of its own.
namespace switchyard::ops {

/// Ids that every block counts for itself.
inline constexpr std::int64_t kMostIds = 4096;

/// Whether arrange_rows_cuda() sorts too; else what DeviceSort writes has to stand already.
bool arranges_alone(const DeviceSort& sort);

/// Copies each token to the sorted rows of its choices, quantised once.
void arrange_rows_cuda(const DeviceSort& sort, const DeviceGather& gather, Stream stream);

}  // namespace switchyard::ops
