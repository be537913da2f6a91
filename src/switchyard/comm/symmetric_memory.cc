// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/symmetric_memory.h"

#include "switchyard/base/check.h"

namespace switchyard::comm {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

SymmetricMemory::SymmetricMemory(Group& group, std::size_t slice_bytes)
    : stride_((slice_bytes + kPage - 1) / kPage * kPage) {
  memory_ = group.share(stride_ * std::size_t(group.size()), "allocation of symmetric memory");
}

}  // namespace switchyard::comm
