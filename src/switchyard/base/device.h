// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "switchyard/base/errors.h"
#include "switchyard/base/text.h"

namespace switchyard {

/// Where a leaf runs.
enum class Device : std::uint8_t { kCpu, kCuda };

/// "cpu" or "cuda".
constexpr std::string_view to_string(Device d) { return d == Device::kCpu ? "cpu" : "cuda"; }

/// Inverse of to_string(). Errors: UsageError on any other word.
inline Device to_device(std::string_view s) {
  if (s == "cpu") return Device::kCpu;
  if (s == "cuda") return Device::kCuda;
  throw UsageError(cat("device '", s, "' is unknown; use cpu or cuda"));
}

/// A caller's CUDA stream, passed by value; null means "no stream" and is legal on the CPU only.
struct Stream {
  void* handle = nullptr;
};

}  // namespace switchyard
