// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/inspect.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "switchyard/base/text.h"
#include "switchyard/checkpoint/finite.h"
#include "switchyard/checkpoint/safetensors.h"

namespace switchyard::checkpoint {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxAnomalies = 10;  // the rest is counted

using Pick = const WeightSource* (*)(const ExpertSources&);

const WeightSource* pick_gate(const ExpertSources& e) { return e.gate ? &*e.gate : nullptr; }
const WeightSource* pick_up(const ExpertSources& e) { return &e.up; }
const WeightSource* pick_down(const ExpertSources& e) { return &e.down; }

void widen(double value, bool first, double& low, double& high) {
  low = first ? value : std::min(low, value);
  high = first ? value : std::max(high, value);
}

ProjectionReport report_projection(std::string name, const std::vector<ExpertSources>& experts,
                                   Pick pick) {
  ProjectionReport out;
  out.name = std::move(name);
  bool first = true;
  for (const ExpertSources& e : experts) {
    const WeightSource& w = *pick(e);
    out.bytes += w.stored_bytes();
    out.scales.merge(scan_scales(w));
    widen(w.global_scale, first, out.global_min, out.global_max);
    if (w.input_scale) widen(*w.input_scale, first, out.input_min, out.input_max);
    first = false;
  }
  return out;
}

std::vector<std::string> find_anomalies(const std::vector<ExpertSources>& experts) {
  std::vector<std::string> out;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const ExpertSources& x = experts[e];
    if (!x.gate) continue;
    if (x.gate->global_scale != x.up.global_scale)
      out.push_back(cat("expert ", e, ": gate's global scale ", x.gate->global_scale,
                        " differs from up's ", x.up.global_scale, " (kept apart)"));
    if (x.gate->input_scale != x.up.input_scale)
      out.push_back(cat("expert ", e, ": gate's input scale ", x.gate->input_scale.value_or(0),
                        " differs from up's ", x.up.input_scale.value_or(0),
                        " (the layer's maximum counts)"));
  }
  if (out.size() > kMaxAnomalies) {
    std::size_t more = out.size() - kMaxAnomalies;
    out.resize(kMaxAnomalies);
    out.push_back(cat("and ", more, " more of this kind"));
  }
  return out;
}

/// Reads every weight; a few findings tell what a thousand would.
void add_bad_values(const std::vector<ExpertSources>& experts, std::vector<Finding>& findings) {
  std::size_t count = 0;
  for (std::size_t e = 0; e < experts.size(); ++e)
    for (Finding& found : find_bad_values(experts[e], cat("expert ", e)))
      if (++count <= kMaxAnomalies) findings.push_back(std::move(found));
  if (count > kMaxAnomalies)
    findings.back().text += cat(" (and ", count - kMaxAnomalies, " more matrices of experts)");
}

std::int64_t bytes_of(const formats::Matrix& m) { return m.layout.stored_bytes(m.rows, m.cols); }

LayerReport report_layer(const Checkpoint& checkpoint, const LayerInfo& info) {
  LayerReport out;
  out.info = info;
  out.problem = checkpoint.problem(info.index);
  if (!info.present && info.is_mtp) {
    out.notices.push_back("declared MTP layer without any tensor");
    return out;
  }
  LayerReading reading = checkpoint.read_layer(info.index);
  out.findings = std::move(reading.findings);
  out.notices = std::move(reading.weights.notices);
  if (const auto& shared = reading.weights.shared) {
    const ExpertWeights& w = shared->weights;
    out.shared_format = shared->format;
    out.shared_bytes = bytes_of(w.up) + bytes_of(w.down) + (w.gate ? bytes_of(*w.gate) : 0);
  }
  if (reading.experts.empty()) return out;
  if (reading.experts.front().gate)
    out.projections.push_back(report_projection("gate", reading.experts, pick_gate));
  out.projections.push_back(report_projection("up", reading.experts, pick_up));
  out.projections.push_back(report_projection("down", reading.experts, pick_down));
  for (const ProjectionReport& p : out.projections) out.routed_bytes += p.bytes;
  out.anomalies = find_anomalies(reading.experts);
  add_bad_values(reading.experts, out.findings);
  return out;
}

InspectReport inspect_file(const std::string& path) {
  SafetensorsFile file = SafetensorsFile::open(path);
  InspectReport out;
  out.path = path;
  out.is_directory = false;
  out.family = out.schema = "unknown";
  out.num_tensors = std::int64_t(file.tensors().size());
  out.file_bytes = std::int64_t(file.file_bytes());
  for (const auto& [name, t] : file.tensors())
    out.tensors.push_back(
        {name, std::string(to_string(t.type)), t.shape, std::int64_t(t.bytes.size())});
  return out;
}

json projection_json(const ProjectionReport& p) {
  json out = {{"projection", p.name}, {"bytes", p.bytes}};
  if (p.scales.count > 0)
    out["scales"] = {{"count", p.scales.count},
                     {"min", p.scales.min},
                     {"max", p.scales.max},
                     {"zeros", p.scales.zeros}};
  if (p.global_min != 1 || p.global_max != 1)
    out["global_scale"] = {{"min", p.global_min}, {"max", p.global_max}};
  if (p.input_max > 0) out["input_scale"] = {{"min", p.input_min}, {"max", p.input_max}};
  return out;
}

json shared_json(const LayerReport& l) {
  if (l.problem.num_shared == 0) return nullptr;
  return {
      {"count", l.problem.num_shared},
      {"inter", l.problem.shared_inter},
      {"gate", l.problem.shared_gate},
      {"format", l.shared_format.empty() ? "unknown" : std::string(show_format(l.shared_format))},
      {"bytes", l.shared_bytes}};
}

json findings_json(const std::vector<Finding>& findings, bool wanted(FindingKind)) {
  json out = json::array();
  for (const Finding& f : findings)
    if (wanted(f.kind))
      out.push_back(
          {{"kind", std::string(to_string(f.kind))}, {"tensor", f.tensor}, {"text", f.text}});
  return out;
}

json layer_json(const LayerReport& l) {
  json out = {{"layer", l.info.index},
              {"block", l.info.block},
              {"format", std::string(show_format(l.info.format))},
              {"present", l.info.present},
              {"mtp", l.info.is_mtp},
              {"hidden", l.problem.hidden},
              {"inter", l.problem.inter},
              {"experts", l.problem.num_experts()},
              {"top_k", l.problem.top_k()},
              {"routing", describe(l.problem.routing)},
              {"activation", describe(l.problem.activation)},
              {"routed_scaling_factor", l.problem.routed_scaling_factor},
              {"shared", shared_json(l)},
              {"bytes", l.routed_bytes},
              {"projections", json::array()},
              {"anomalies", l.anomalies},
              {"notices", l.notices},
              {"ok", l.findings.empty()}};
  for (const ProjectionReport& p : l.projections) out["projections"].push_back(projection_json(p));
  out["missing"] =
      findings_json(l.findings, [](FindingKind k) { return k == FindingKind::kMissing; });
  out["extra"] =
      findings_json(l.findings, [](FindingKind k) { return k == FindingKind::kUnknown; });
  out["odd"] = findings_json(l.findings, [](FindingKind k) {
    return k != FindingKind::kMissing && k != FindingKind::kUnknown;
  });
  return out;
}

}  // namespace

bool InspectReport::ok() const {
  return std::all_of(layers.begin(), layers.end(),
                     [](const LayerReport& l) { return l.findings.empty(); });
}

InspectReport inspect(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return inspect_file(path);
  Checkpoint checkpoint = Checkpoint::open(path);
  InspectReport out;
  out.path = path;
  out.family = checkpoint.family();
  out.schema = checkpoint.schema();
  out.num_tensors = checkpoint.num_tensors();
  out.file_bytes = checkpoint.file_bytes();
  out.notices = checkpoint.notices();
  for (const LayerInfo& info : checkpoint.layers())
    out.layers.push_back(report_layer(checkpoint, info));
  return out;
}

json to_json(const InspectReport& r) {
  json out = {{"path", r.path},
              {"kind", r.is_directory ? "directory" : "file"},
              {"family", r.family},
              {"schema", r.schema},
              {"num_tensors", r.num_tensors},
              {"file_bytes", r.file_bytes},
              {"layers", json::array()},
              {"tensors", json::array()},
              {"notices", r.notices},
              {"ok", r.ok()}};
  for (const LayerReport& l : r.layers) out["layers"].push_back(layer_json(l));
  for (const TensorReport& t : r.tensors)
    out["tensors"].push_back(
        {{"name", t.name}, {"type", t.type}, {"shape", t.shape}, {"bytes", t.bytes}});
  return out;
}

}  // namespace switchyard::checkpoint
