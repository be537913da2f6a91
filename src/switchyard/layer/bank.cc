// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/bank.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "switchyard/base/check.h"
#include "switchyard/ops/grouped_ffn/expert_packer.h"
#include "switchyard/tune/table.h"

namespace switchyard::layer {
namespace {

/// Static input scales as the experts declare them; -1 marks a missing one.
struct DeclaredScales {
  std::vector<float> fc1, fc2;
};

void note_scales(const checkpoint::ExpertWeights& e, std::int64_t i, DeclaredScales& out) {
  constexpr float kMissing = -1;
  float up = e.up.input_scale.value_or(kMissing);
  float gate = e.gate ? e.gate->input_scale.value_or(kMissing) : up;
  out.fc1[std::size_t(i)] = std::min(up, gate) == kMissing ? kMissing : std::max(up, gate);
  out.fc2[std::size_t(i)] = e.down.input_scale.value_or(kMissing);
}

/// Experts that are materialised at a time: at most one per kExpertsPerCopy of the layer. That, and
/// not the number of threads, bounds the memory beside the packed bank.
std::int64_t copies_of(std::int64_t experts, const LayerOptions& options) {
  constexpr std::int64_t kExpertsPerCopy = 16;
  return std::clamp<std::int64_t>(experts / kExpertsPerCopy, 1, options.pool->size());
}

/// Packs every expert: `pack` gets its number, and that of the copy whose turn it is.
template <class Pack>
void pack_all(std::int64_t experts, std::int64_t copies, const LayerOptions& options, Pack&& pack) {
  std::mutex progress_lock;
  std::int64_t done = 0;
  options.pool->for_each(copies, [&](std::int64_t first, int) {
    for (std::int64_t e = first; e < experts; e += copies) {
      pack(e, first);
      std::lock_guard lock(progress_lock);
      if (options.progress) options.progress(++done, experts);
    }
  });
}

/// Maps the host's memory of a bank, or refuses what would not fit.
void reserve_host(ExpertBank& bank, const LayerOptions& options) {
  const std::int64_t bytes = bank.packed_bytes();
  // A tenth stays free: for the expert being packed, the workspace and the machine's other
  // programs.
  const std::int64_t limit = options.memory_bytes / 10 * 9;
  require(options.memory_bytes == 0 || bytes < limit, "the packed experts need ", bytes, " bytes (",
          bank.shape.experts, " experts of ", bank.layout.bytes, "), ", limit, " of the ",
          options.memory_bytes,
          " available may be used; choose a format with fewer bits or a smaller layer");
  bank.packed = HostBuffer(std::size_t(bytes));
}

void reserve_device(ExpertBank& bank) {
  try {
    bank.device_packed = std::make_shared<DeviceMemory>(std::size_t(bank.packed_bytes()));
  } catch (const DeviceError& e) {
    throw DeviceError(cat("the packed experts need ", bank.packed_bytes(), " bytes on the GPU (",
                          bank.shape.experts, " experts of ", bank.layout.bytes, "): ", e.what()));
  }
}

using Packers = std::vector<std::unique_ptr<ops::ExpertPacker>>;

/// Memory that the packers of a bank on a GPU take together, there and pinned on the host; one
/// packer may need more.
constexpr std::size_t kPackingBytes = std::size_t(512) << 20;

/// One packer per copy, as far as the memory for them allows.
Packers make_packers(ExpertBank& bank, std::int64_t copies) {
  const auto scratch = ops::PackerScratch::of(bank.shape, bank.layout);
  const auto most = std::int64_t(kPackingBytes / scratch.device_bytes());
  Packers out;
  for (std::int64_t i = 0; i < std::clamp<std::int64_t>(most, 1, copies); ++i)
    out.push_back(std::make_unique<ops::ExpertPacker>(bank.shape, bank.layout));
  bank.packing = {out.size() * scratch.device_bytes(), out.size() * scratch.host_bytes()};
  return out;
}

/// Packs all experts of `source` where they are to stay, and notes their scales.
void pack_experts(const BankArgs& args, ExpertBank& bank, DeclaredScales& declared) {
  const leaves::Leaf& leaf = args.leaf;
  const std::size_t bytes = bank.layout.bytes;
  std::int64_t copies = copies_of(bank.shape.experts, args.options);
  Packers packers;
  if (leaf.device == Device::kCuda) {
    packers = make_packers(bank, copies);
    copies = std::int64_t(packers.size());
  }
  pack_all(bank.shape.experts, copies, args.options, [&](std::int64_t e, std::int64_t copy) {
    const checkpoint::ExpertWeights expert = args.source(e);
    note_scales(expert, e, declared);
    const std::size_t at = std::size_t(e) * bytes;
    if (packers.empty())
      return leaf.ffn->pack(bank.shape, bank.layout, expert, 1.0f,
                            bank.packed.bytes().subspan(at, bytes));
    auto* packed = static_cast<std::byte*>(bank.device_packed->data());
    packers[std::size_t(copy)]->pack(expert, 1.0f, packed + at);
  });
  for (const auto& packer : packers) packer->wait();
}

bool any_missing(const std::vector<float>& scales) {
  return std::any_of(scales.begin(), scales.end(), [](float s) { return s < 0; });
}

}  // namespace

formats::ActivationQuant effective_quant(formats::ActivationQuant declared, ActivationMode mode) {
  if (mode == ActivationMode::kBf16) return formats::ActivationQuant::kNone;
  if (mode == ActivationMode::kF32) return formats::ActivationQuant::kF32;
  return declared;
}

ExpertBank build_bank(const BankArgs& args, bool& missing_scale) {
  const ops::FfnShape& shape = args.shape;
  const leaves::Leaf& leaf = args.leaf;
  ensure(leaf.ffn != nullptr, "leaf ", leaf.id.str(), " has no kernels, yet it was chosen");
  ExpertBank bank;
  bank.shape = shape;
  bank.layout = leaf.ffn->layout(shape);
  bank.tactics = tuned_for(leaf, shape, args.options);
  if (leaf.device == Device::kCpu) reserve_host(bank, args.options);
  if (leaf.device == Device::kCuda) reserve_device(bank);
  DeclaredScales declared{std::vector<float>(std::size_t(shape.experts)),
                          std::vector<float>(std::size_t(shape.experts))};
  pack_experts(args, bank, declared);
  // Fused shared experts follow the routed ones and have the constants of a shared expert: its
  // first.
  const std::int64_t routed = shape.experts - shape.unscaled_choices;
  for (std::int64_t e = 0; e < shape.experts; ++e)
    bank.activation.push_back(lower(args.activation, e < routed ? args.options.held.begin + e : 0));
  if (leaf.device == Device::kCuda) {
    bank.device_activation =
        std::make_shared<DeviceMemory>(bank.activation.size() * sizeof(ActivationParams));
    bank.device_activation->upload(bank.activation.data());
  }
  bank.scales.fc2.assign(std::size_t(shape.experts), 1.0f);
  missing_scale =
      formats::is_static(shape.quant) && (any_missing(declared.fc1) || any_missing(declared.fc2));
  if (formats::is_static(shape.quant) && !missing_scale)
    set_static_scales(
        bank, {*std::max_element(declared.fc1.begin(), declared.fc1.end()), declared.fc2, {}});
  return bank;
}

HostBuffer copy_buffer(const HostBuffer& from, ThreadPool& pool) {
  constexpr std::size_t kPiece = std::size_t(8) << 20;
  const std::span<const std::byte> bytes = from.bytes();
  HostBuffer to(bytes.size());
  pool.for_each(std::int64_t((bytes.size() + kPiece - 1) / kPiece), [&](std::int64_t i, int) {
    const std::size_t at = std::size_t(i) * kPiece;
    std::memcpy(to.data() + at, bytes.data() + at, std::min(kPiece, bytes.size() - at));
  });
  return to;
}

ExpertBank copy_bank(const ExpertBank& bank, ThreadPool& pool) {
  ExpertBank out;
  out.shape = bank.shape;
  out.layout = bank.layout;
  if (bank.device_packed == nullptr) {
    out.packed = copy_buffer(bank.packed, pool);
  } else {
    reserve_device(out);
    out.device_packed->copy_from(*bank.device_packed);
  }
  out.device_activation = bank.device_activation;  // never written after it was built
  out.scales = bank.scales;
  out.activation = bank.activation;
  out.tactics = bank.tactics;
  out.packing = bank.packing;
  return out;
}

TacticList tuned_for(const leaves::Leaf& leaf, const ops::FfnShape& shape,
                     const LayerOptions& options) {
  if (options.tactics == nullptr) return {};
  const int threads = options.pool != nullptr ? options.pool->size() : 1;
  return options.tactics->list_for(leaf, {&shape, 1, threads, options.isa});
}

void set_static_scales(ExpertBank& bank, StaticScales scales) {
  ensure(std::int64_t(scales.fc2.size()) == bank.shape.experts, "static scales for ",
         scales.fc2.size(), " experts, the bank holds ", bank.shape.experts);
  constexpr std::size_t kFc2Scale = 3 * sizeof(float);   // behind the three alphas
  if (bank.device_packed != nullptr) wait_for_device();  // forwards in flight read the old ones
  for (std::size_t e = 0; e < scales.fc2.size(); ++e) {
    const std::size_t at = e * bank.layout.bytes + bank.layout.floats + kFc2Scale;
    if (bank.device_packed != nullptr) {
      bank.device_packed->upload_part(&scales.fc2[e], at, sizeof(float));
    } else {
      std::memcpy(bank.packed.data() + at, &scales.fc2[e], sizeof(float));
    }
  }
  bank.scales = std::move(scales);
}

}  // namespace switchyard::layer
