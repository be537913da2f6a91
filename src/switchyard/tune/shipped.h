// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "switchyard/tune/table.h"

namespace switchyard::tune {

/// One winner: as TableEntry, in literals.
struct ShippedRow {
  std::string_view leaf;
  std::int64_t hidden, inter, experts, top_k;
  bool gated, bias, weight_on_input;
  std::string_view weights, quant, dtype;
  std::int64_t tokens;
  TileTactic tactic;
  double us, plan_us, noise;

  /// The row as an entry of a table.
  TableEntry entry() const;
};

/// The winners of one GPU.
struct ShippedRows {
  std::string_view gpu;      // as the driver names it
  std::string_view kernels;  // tile_kernels() of the build that was measured
  std::string_view build;    // that build
  std::span<const ShippedRow> rows;
};

/// Those of all GPUs.
std::span<const ShippedRows> all_shipped();

/// The choices among `all` for `machine` and a build whose tile kernels have digest `kernels`:
/// those of other kernels hold for none of its calls.
TuningTable select_shipped(std::span<const ShippedRows> all, const Machine& machine,
                           std::string_view kernels);

/// Whether a build with tile kernels of that digest uses the winners of `gpu`, as a line for people
/// says it.
std::string shipped_line(const ShippedRows& gpu, std::string_view kernels);

/// That line for the GPU called `gpu`, where the choices among `all` that were measured there all
/// are of other kernels; else empty.
std::string stale_shipped(std::span<const ShippedRows> all, std::string_view gpu,
                          std::string_view kernels);

}  // namespace switchyard::tune
