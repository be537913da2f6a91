// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string_view>
#include <utility>

namespace switchyard::test {

/// True under `make soak`. The name has no SWITCHYARD_ prefix: the library warns of unknown ones.
inline bool is_soak() {
  const char* value = std::getenv("TEST_SOAK");
  return value != nullptr && std::string_view(value) == "1";
}

/// The full matrix under `make soak`, the subset that a change must pass otherwise.
template <class T>
T subset_or_full(T subset, T full) {
  return is_soak() ? std::move(full) : std::move(subset);
}

}  // namespace switchyard::test
