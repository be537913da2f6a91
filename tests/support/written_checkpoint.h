// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/checkpoint/moe_io.h"
#include "tests/support/safetensors_writer.h"

namespace switchyard::test {

/// How routed experts stand in the file.
enum class Storage {
  kPerExpert,           // one tensor per projection; names hold "{e}"
  kRows,                // [E, 2I, H], [E, H, I]
  kColumns,             // [E, H, 2I], [E, I, H]
  kInterleavedColumns,  // [E, H, 2I] alternating, [E, I, H]
  kSeparate,            // [E, I, H] twice, [E, H, I]
  kFlat                 // [E * I, H] three times
};

/// How a weight is coded, and under which names.
enum class Coding {
  kBf16,
  kFp8Block,        // weight, weight_scale_inv
  kFp8BlockNative,  // weight, scale as F8_E8M0
  kFp8Channel,      // weight, weight_scale [N, 1]
  kFp8Static,       // weight, weight_scale, input_scale
  kNvfp4,           // weight, weight_scale, weight_scale_2, input_scale
  kNvfp4Packed,     // weight_packed, weight_scale and two global scales that divide
  kMxfp4Packed,     // weight_packed, weight_scale as U8
  kMxfp4Native      // weight as I8, scale as F8_E8M0
};

/// Tensor names below the block; empty where the family has none.
struct WrittenNames {
  std::string router;
  std::array<std::string, 3> expert;  // gate, up, down; stacked: as many as there are tensors
  std::array<std::string, 3> shared = {};
  std::string shared_gate = {}, choice_bias = {}, per_expert_scale = {};
  std::string router_scale = {};  // beside it a norm's weight, when input_norm is set
  std::string input_norm = {};
  std::string latent_down = {}, latent_up = {}, latent_norm = {};
  std::string output_bias = {};
  std::string parallel_up = {}, parallel_down = {};  // in the layer's folder
};

/// One checkpoint that a test writes: a config, what it means, and how the tensors are spelt.
struct WrittenSpec {
  std::string name;
  std::string config;  // JSON
  std::string block;
  std::int64_t layer = 0;
  Problem problem;  // what config.json means, written by hand
  WrittenNames names;
  Storage storage = Storage::kPerExpert;
  Coding coding = Coding::kBf16;         // of the routed experts
  Coding shared_coding = Coding::kBf16;  // of the shared one
  Activation shared_activation = Swiglu{};
  std::int64_t bias_rows = 0;       // > 0: the choice bias is stored [n, E]
  std::int64_t parallel_inter = 0;  // width of the MLP beside the block
  std::string bias_type = "F32";
};

/// How a failing test shows it.
inline void PrintTo(const WrittenSpec& spec, std::ostream* out) { *out << spec.name; }

/// A written checkpoint with the weights it was made of; every expert, row and scale is distinct.
struct WrittenCheckpoint {
  CheckpointEditor files;
  checkpoint::LayerWeights truth;  // never read from a file
  checkpoint::MoeIo io;            // 12 tokens, and what naive_moe() makes of them and the truth

  /// Writes config.json, model.safetensors and moe_io.safetensors.
  void write(const TempDir& dir) const;
};

/// Makes the weights of `spec` and lays them out as its family does.
WrittenCheckpoint make_checkpoint(const WrittenSpec& spec);

/// A checkpoint of every served family and schema without a bundled one.
const std::vector<WrittenSpec>& written_specs();

}  // namespace switchyard::test
