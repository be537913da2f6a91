// SPDX-License-Identifier: Apache-2.0
// Winners that were measured and ship with the library, by GPU. They hold for the kernels that they
// were measured with: others leave the choice to the planner until somebody measures again
// (docs/tuning.md).
#include "switchyard/tune/shipped.h"

#include "switchyard/base/text.h"
#include "switchyard/base/version.h"
#include "switchyard/tune/shipped_h200.h"

namespace switchyard::tune {
namespace {

constexpr ShippedRow kH200[] = {
#include "switchyard/tune/shipped_h200.inc"
    {}  // behind the last one: an array has an element
};
constexpr ShippedRows kAll[] = {
    {"NVIDIA H200", kH200Kernels, kH200Build, std::span(kH200).first(std::size(kH200) - 1)},
};

}  // namespace

std::span<const ShippedRows> all_shipped() { return kAll; }

TableEntry ShippedRow::entry() const {
  CallKey key{.leaf = std::string(leaf),
              .hidden = hidden,
              .inter = inter,
              .experts = experts,
              .top_k = top_k,
              .gated = gated,
              .bias = bias,
              .weight_on_input = weight_on_input,
              .weights = std::string(weights),
              .quant = std::string(quant),
              .dtype = std::string(dtype),
              .tokens = tokens,
              .threads = 0};
  return {std::move(key), tactic, TileTactic{}, us, plan_us, noise, 0, 0};
}

TuningTable select_shipped(std::span<const ShippedRows> all, const Machine& machine,
                           std::string_view kernels) {
  TuningTable out;
  out.machine = machine;
  for (const ShippedRows& gpu : all) {
    if (gpu.gpu != machine.gpu || gpu.kernels != kernels) continue;
    for (const ShippedRow& row : gpu.rows) out.entries.push_back(row.entry());
  }
  return out;
}

TuningTable shipped_table(const Machine& machine) {
  return select_shipped(all_shipped(), machine, tile_kernels());
}

std::string shipped_line(const ShippedRows& gpu, std::string_view kernels) {
  const std::string what = cat(gpu.rows.size(), " choices that ship for ", gpu.gpu);
  if (gpu.kernels == kernels) return what + " are used there";
  return cat(what, " are not used: measured with kernels ", gpu.kernels, ", this build has ",
             kernels);
}

std::string stale_shipped(std::span<const ShippedRows> all, std::string_view gpu,
                          std::string_view kernels) {
  const ShippedRows* stale = nullptr;
  for (const ShippedRows& rows : all) {
    if (rows.gpu != gpu || rows.rows.empty()) continue;
    if (rows.kernels == kernels) return {};
    stale = &rows;
  }
  return stale != nullptr ? shipped_line(*stale, kernels) : std::string();
}

}  // namespace switchyard::tune
