// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <string>
#include <string_view>

namespace switchyard {

/// A leaf's name: exactly four lower-case segments, provider.technique.kernel.format.
struct Identity4 {
  std::string_view provider;   // "switchyard"
  std::string_view technique;  // "cpu" or "cuda"
  std::string_view kernel;     // "fused_moe" or "mega_moe"
  std::string_view quant;      // "none" for unquantised

  auto operator<=>(const Identity4&) const = default;
  /// "switchyard.cpu.fused_moe.nvfp4".
  std::string str() const {
    return std::string(provider) + "." + std::string(technique) + "." + std::string(kernel) + "." +
           std::string(quant);
  }
};

}  // namespace switchyard
