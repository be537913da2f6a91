// SPDX-License-Identifier: Apache-2.0
#include "switchyard/resolve/switches.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>

#include "switchyard/base/check.h"
#include "switchyard/base/nearest.h"

namespace switchyard::resolve {
namespace {

constexpr std::string_view kPrefix = "SWITCHYARD_", kTestPrefix = "SWITCHYARD_TEST_";
constexpr std::string_view kWarmup = "SWITCHYARD_WARMUP_TIMEOUT_S",
                           kServing = "SWITCHYARD_SERVING_TIMEOUT_S";
constexpr int kMaxTimeout = 86400;

std::string one_of(std::string_view name, std::string_view value,
                   const std::vector<std::string>& legal) {
  std::string word = normalise_word(value);
  bool known = std::find(legal.begin(), legal.end(), word) != legal.end();
  require(known, name, " = '", value, "' is not a legal value; use one of ", join(legal));
  return word;
}

std::string comm(std::string_view name, std::string_view value) {
  static const std::map<std::string, std::string> kAncestors = {
      {"nvlink_one_sided", "one_sided"},
      {"nvlink_two_sided", "two_sided"},
      {"allgather", "all_gather"},
      {"nccl_ep", "nccl"},
      {"deepep", "compact"},
      {"deepeplowlatency", "expert_major"}};
  auto known = kAncestors.find(normalise_word(value));
  if (known != kAncestors.end()) return known->second;
  return one_of(
      name, value,
      {"auto", "all_gather", "one_sided", "two_sided", "expert_major", "compact", "nccl", "fused"});
}

std::string isa(std::string_view name, std::string_view value) {
  return one_of(name, value, {"auto", "portable", "avx2", "avx512", "zen4", "amx"});
}

std::string on_off(std::string_view name, std::string_view value) {
  return one_of(name, value, {"0", "1"});
}

std::string combine(std::string_view name, std::string_view value) {
  return one_of(name, value, {"layer", "bf16", "fp8", "nvfp4"});
}

int seconds(std::string_view value) {
  int out = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
  return error == std::errc() && end == value.data() + value.size() ? out : -1;
}

std::string timeout(std::string_view name, std::string_view value) {
  int s = seconds(normalise_word(value));
  require(s >= 1 && s <= kMaxTimeout, name, " = '", value,
          "' is not a whole number of seconds from 1 to ", kMaxTimeout,
          "; give one in that range, or unset it");
  return cat(s);
}

constexpr Switch honoured(std::string_view name, bool in_fingerprint, std::string_view otherwise,
                          std::string (*canonical)(std::string_view, std::string_view),
                          std::string_view doc) {
  return {.name = name,
          .status = SwitchStatus::kHonoured,
          .in_fingerprint = in_fingerprint,
          .default_value = otherwise,
          .doc = doc,
          .canonical = canonical};
}

constexpr Switch alias(std::string_view name, std::string_view replacement) {
  return {.name = name,
          .status = SwitchStatus::kAlias,
          .replacement = replacement,
          .doc = "An ancestor's name, honoured with one warning."};
}

constexpr Switch retired(std::string_view name, std::string_view instead) {
  return {.name = name,
          .status = SwitchStatus::kRetired,
          .replacement = instead,
          .doc = "Has no effect and warns once."};
}

constexpr std::array kTable = {
    honoured("SWITCHYARD_COMM", true, "auto", comm,
             "Pins the exchange strategy; it beats the argument of the same meaning."),
    honoured("SWITCHYARD_CPU_ISA", true, "auto", isa,
             "Pins the CPU instruction tier; one that the machine lacks is an error."),
    honoured(kWarmup, false, "1800", timeout,
             "Deadline of waits between ranks until the first forward has ended."),
    honoured(kServing, false, "300", timeout,
             "Deadline of waits between ranks in every later forward."),
    honoured("SWITCHYARD_POST_QUANT_DISPATCH", true, "1", on_off,
             "1 quantises before dispatch where the strategy can, 0 after it."),
    honoured("SWITCHYARD_COMBINE_PRECISION", true, "layer", combine,
             "Precision of the combine for every layer; 'layer' leaves each its own."),
    honoured("SWITCHYARD_SHARED_EXPERT_FUSION", true, "0", on_off,
             "1 runs shared experts as routed ids where the predicate allows it."),

    alias("TRTLLM_FORCE_COMM_METHOD", "SWITCHYARD_COMM"),
    alias("TRTLLM_MOE_COMM_WARMUP_TIMEOUT_SEC", kWarmup),
    alias("TRTLLM_MOE_COMM_TIMEOUT_SEC", kServing),
    alias("TRTLLM_MOE_A2A_WARMUP_TIMEOUT_SEC", kWarmup),
    alias("TRTLLM_MOE_A2A_TIMEOUT_SEC", kServing),
    alias("TRTLLM_MOE_POST_QUANT_ALLTOALLV", "SWITCHYARD_POST_QUANT_DISPATCH"),
    alias("TLLM_MOE_ENABLE_SHARED_EXPERT_FUSION", "SWITCHYARD_SHARED_EXPERT_FUSION"),

    retired("TRTLLM_GEN_FUSED_MOE_USE_FLASHINFER", "the one native leaf of the format always runs"),
    retired("TLLM_TRTLLMGEN_FORCE_SEPARATED_ROUTING",
            "routing always runs as its own step in front of the leaf"),
    retired("TLLM_K3_DISABLE_FUSED_ROUTE_QUANT",
            "routing and quantisation always run as separate steps"),
    retired("TRTLLM_CAN_USE_DEEP_EP",
            "strategies are always judged by their own gates; SWITCHYARD_COMM pins one"),
    retired("TRTLLM_DEEP_EP_TOKEN_LIMIT",
            "the token capacity is always the one that the layer was built with"),
    retired("TRTLLM_MOE_A2A_WORKSPACE_MB",
            "the workspace always has the size that the layer's shape needs"),
};

const Switch* find(std::string_view name) {
  for (const Switch& row : kTable)
    if (row.name == name) return &row;
  return nullptr;
}

std::string misspelt_text(std::string_view name) {
  std::vector<std::string> ours;
  for (const Switch& row : kTable)
    if (row.status == SwitchStatus::kHonoured) ours.emplace_back(row.name);
  return cat(name, " is not a switch and has no effect; ", suggest(name, ours));
}

struct Setting {
  std::string value;  // canonical
  std::string by;     // the variable that set it
};

class Reader {
 public:
  explicit Reader(const Variables& variables) {
    for (const auto& [name, value] : variables) {
      if (value.empty()) continue;
      if (const Switch* row = find(name)) {
        known(*row, value);
      } else if (name.starts_with(kPrefix) && !name.starts_with(kTestPrefix)) {
        out_.warnings.push_back({name, misspelt_text(name)});
      }
    }
  }

  SwitchReading finish() {
    for (const Switch& row : kTable) {
      if (row.status != SwitchStatus::kHonoured) continue;
      Variables& list = row.in_fingerprint ? out_.flags : out_.local_flags;
      list.emplace_back(row.name, value_of(row.name));
    }
    std::sort(out_.flags.begin(), out_.flags.end());
    std::sort(out_.local_flags.begin(), out_.local_flags.end());
    check_timeouts();
    return std::move(out_);
  }

 private:
  void known(const Switch& row, const std::string& value) {
    if (row.status == SwitchStatus::kRetired) {
      out_.warnings.push_back({std::string(row.name),
                               cat(row.name, " is retired and has no effect; ", row.replacement)});
      return;
    }
    if (row.status == SwitchStatus::kAlias)
      out_.warnings.push_back({std::string(row.name), cat(row.name, " is an old name; set ",
                                                          row.replacement, " instead")});
    const Switch& target = row.status == SwitchStatus::kAlias ? *find(row.replacement) : row;
    set(target.name, {target.canonical(row.name, value), std::string(row.name)});
  }

  void set(std::string_view name, const Setting& setting) {
    auto [at, added] = settings_.emplace(name, setting);
    const Setting& before = at->second;
    require(added || before.value == setting.value, before.by, " = ", before.value, " contradicts ",
            setting.by, " = ", setting.value, ", which means the same switch; unset one of them");
  }

  std::string value_of(std::string_view name) const {
    auto at = settings_.find(name);
    return at != settings_.end() ? at->second.value : std::string(find(name)->default_value);
  }

  // A warm-up budget below the serving one would fail first where only serving was meant to be
  // long. One that was not set by hand follows the other.
  void check_timeouts() {
    int warmup = seconds(value_of(kWarmup)), serving = seconds(value_of(kServing));
    if (warmup >= serving) return;
    require(!settings_.contains(kWarmup) || !settings_.contains(kServing), kWarmup, " = ", warmup,
            " is shorter than ", kServing, " = ", serving, "; raise the first or lower the second");
    bool raise = settings_.contains(kServing);
    std::string_view follower = raise ? kWarmup : kServing;
    for (auto& [name, value] : out_.local_flags)
      if (name == follower) value = cat(raise ? serving : warmup);
    out_.warnings.push_back(
        {std::string(follower),
         raise ? cat(kServing, " = ", serving, " is longer than the warm-up's ", warmup,
                     ", which is raised to it; set ", kWarmup, " to choose another")
               : cat(kWarmup, " = ", warmup, " is shorter than the serving timeout's ", serving,
                     ", which is lowered to it; set ", kServing, " to choose another")});
  }

  std::map<std::string, Setting, std::less<>> settings_;
  SwitchReading out_;
};

}  // namespace

std::string_view to_string(SwitchStatus status) {
  return status == SwitchStatus::kHonoured ? "honoured"
         : status == SwitchStatus::kAlias  ? "alias"
                                           : "retired";
}

std::span<const Switch> switch_table() { return kTable; }

SwitchReading read_switches(const Variables& variables) { return Reader(variables).finish(); }

}  // namespace switchyard::resolve
