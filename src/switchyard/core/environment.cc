// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/environment.h"

#include <algorithm>

#include "switchyard/base/nearest.h"
#include "switchyard/base/sha256.h"

namespace switchyard {
namespace {

// A length in front of every part: no two lists of parts give the same bytes.
class Encoder {
 public:
  void add(std::string_view part) { bytes_ += cat(part.size(), ":", part); }
  void add_sorted(std::vector<std::string> parts) {
    std::sort(parts.begin(), parts.end());
    add(cat(parts.size()));
    for (const std::string& part : parts) add(part);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace

std::string_view to_string(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPortable:
      return "portable";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kZen4:
      return "zen4";
    case CpuIsa::kAmx:
      return "amx";
  }
  throw InternalError(cat("CPU tier ", int(isa), " has no text"));
}

CpuIsa to_cpu_isa(std::string_view s) {
  return to_enum("CPU instruction set", s,
                 {CpuIsa::kPortable, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kZen4, CpuIsa::kAmx});
}

bool Environment::has_dep(std::string_view name) const {
  return std::find(deps.begin(), deps.end(), name) != deps.end();
}

std::string_view Environment::flag(std::string_view name) const {
  for (const auto* list : {&flags, &local_flags})
    for (const auto& [key, value] : *list)
      if (key == name) return value;
  return {};
}

std::string Environment::fingerprint() const {
  Encoder encoder;
  encoder.add("switchyard.environment.1");
  encoder.add(build);
  encoder.add(cat(sm));
  encoder.add(cat(num_gpus));
  encoder.add(to_string(isa));
  encoder.add_sorted(deps);
  std::vector<std::string> pairs;
  for (const auto& [key, value] : flags) pairs.push_back(cat(key.size(), ":", key, value));
  encoder.add_sorted(pairs);
  return sha256_hex(encoder.bytes()).substr(0, 16);
}

}  // namespace switchyard
