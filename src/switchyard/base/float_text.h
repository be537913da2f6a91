// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <string>

namespace switchyard {

/// Shortest text that parses back to the same float; -0 prints as 0, so equal values print equally.
inline std::string shortest_text(float value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value + 0.0f).ptr;
  return std::string(buffer, end);
}

}  // namespace switchyard
