// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "switchyard/ops/grouped_gemm/panel.h"

namespace switchyard::test {

/// A thread's memory for decoded panels, with a canary behind it.
class PanelScratch {
 public:
  PanelScratch(const ops::PanelLayout& layout, CpuIsa isa)
      : size_(ops::panel_scratch_bytes(layout, isa)), lines_(size_ / sizeof(Line) + 1) {
    std::memset(static_cast<void*>(lines_.data()), 0xee, lines_.size() * sizeof(Line));
  }
  std::byte* data() { return size_ == 0 ? nullptr : lines_[0].bytes; }
  bool is_intact() const {
    return std::all_of(lines_.back().bytes, lines_.back().bytes + sizeof(Line),
                       [](std::byte b) { return b == std::byte(0xee); });
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::size_t size_;
  std::vector<Line> lines_;
};

}  // namespace switchyard::test
