// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "switchyard/checkpoint/loader.h"

namespace switchyard::checkpoint {

/// Scales of one projection over all experts.
struct ProjectionReport {
  std::string name;  // "gate", "up" or "down"
  std::int64_t bytes = 0;
  ScaleStats scales;
  double global_min = 1, global_max = 1;  // second-level scales; 1 without
  double input_min = 0, input_max = 0;    // static activation scales; 0 without
};

/// One MoE layer.
struct LayerReport {
  LayerInfo info;
  Problem problem;
  std::int64_t routed_bytes = 0, shared_bytes = 0;  // stored, scales included
  std::string shared_format;
  std::vector<ProjectionReport> projections;
  std::vector<std::string> anomalies;  // e.g. an expert whose gate and up scales differ
  std::vector<Finding> findings;       // missing, extra and odd tensors
  std::vector<std::string> notices;
};

/// One tensor of a single file.
struct TensorReport {
  std::string name, type;
  std::vector<std::int64_t> shape;
  std::int64_t bytes = 0;
};

/// What stands at a path: a checkpoint's folder, or one safetensors file.
struct InspectReport {
  std::string path;
  bool is_directory = true;
  std::string family, schema;
  std::int64_t num_tensors = 0, file_bytes = 0;
  std::vector<LayerReport> layers;    // of a folder
  std::vector<TensorReport> tensors;  // of a file
  std::vector<std::string> notices;

  /// True when no layer has a finding.
  bool ok() const;
};

/// Reads the report of `path`; faulty tensors are listed in it.
/// Errors: UsageError when the path, a container or the config cannot be read at all.
InspectReport inspect(const std::string& path);
/// The report as stable JSON.
nlohmann::json to_json(const InspectReport& report);

}  // namespace switchyard::checkpoint
