// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "switchyard/base/check.h"
#include "switchyard/comm/group.h"

namespace switchyard::comm {

/// Every rank's value, in rank order; collective. Errors: as Group::all_gather().
template <class T>
std::vector<T> gathered(Group& group, const T& mine, std::string_view phase) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> out;
  for (const std::string& theirs :
       group.all_gather({reinterpret_cast<const char*>(&mine), sizeof mine}, phase)) {
    ensure(theirs.size() == sizeof mine, phase, ": a rank sent ", theirs.size(), " bytes of ",
           sizeof mine);
    std::memcpy(&out.emplace_back(), theirs.data(), sizeof mine);
  }
  return out;
}

}  // namespace switchyard::comm
