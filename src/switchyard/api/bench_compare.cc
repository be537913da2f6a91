// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/bench_compare.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "switchyard/base/check.h"
#include "switchyard/base/nearest.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

/// Where one kind of result keeps its rows, what tells them apart (in a row, and in the file as a
/// whole), and what is timed: members that hold time_us, or the row itself.
struct Kind {
  std::string_view schema;
  std::vector<std::string> lists, keys, states;
  std::vector<std::string> file_keys{};
  bool row_is_timed = false;
};

constexpr std::string_view kRowItself = "call";

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"switchyard.bench.layer.1",
       {"measurements"},
       {"preset", "checkpoint", "layer", "format", "activations", "tokens", "routing", "leaf",
        "device", "threads", "overrides"},
       {"fresh", "cold", "warm"}},
      {"switchyard.bench.routing.1",
       {"gemm", "choice"},
       {"preset", "hidden", "experts", "method", "top_k", "tokens", "threads"},
       {"gemm", "choice"}},
      {"switchyard.bench.search.1",
       {"measurements"},
       {"preset", "checkpoint", "layer", "format", "activations", "tokens", "ranks", "config"},
       {},
       {},
       /*row_is_timed=*/true},
      {"switchyard.bench.exchange.1",
       {"measurements"},
       {"strategy", "tokens"},
       {"dispatch", "combine", "total"},
       {"ranks", "hidden", "experts", "top_k", "payload", "combine", "pattern", "cpus"}},
      {"switchyard.bench.allreduce.1",
       {"rows"},
       {"pattern", "device", "quant", "ranks", "hidden", "tokens", "strategy", "dtype",
        "scale_layout", "experts", "top_k", "shared", "routed_scaling_factor"},
       {"fused", "separate"}}};
  return all;
}

struct Timed {
  double p50 = 0, p90 = 0;
  std::int64_t samples = 0;
};

/// One file: its machine, how much its session drifted, its times by row and state, and what it
/// says was wrong.
struct Result {
  std::string name, schema, machine, tier;
  double drift = 0;
  std::map<std::pair<std::string, std::string>, Timed> times;
  bool ok = true;
  std::vector<std::string> wrong_rows;
};

/// The member of that name. Errors: UsageError when there is none, naming it.
const Json& member(const Json& object, std::string_view key) {
  require(object.is_object(), "what should hold '", key, "' is no object");
  const auto found = object.find(std::string(key));
  require(found != object.end(), "it has no '", key, "'");
  return *found;
}

double number_of(const Json& object, std::string_view key) {
  const Json& value = member(object, key);
  require(value.is_number(), "its '", key, "' is no number");
  return value.get<double>();
}

std::string text_of(const Json& object, std::string_view key) {
  const Json& value = member(object, key);
  require(value.is_string(), "its '", key, "' is no text");
  return value.get<std::string>();
}

bool flag_of(const Json& object, std::string_view key) {
  const Json& value = member(object, key);
  require(value.is_boolean(), "its '", key, "' is neither true nor false");
  return value.get<bool>();
}

const Json& list_of(const Json& object, std::string_view key) {
  const Json& value = member(object, key);
  require(value.is_array(), "its '", key, "' is no list");
  return value;
}

std::string word_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string machine_of(const Json& machine) {
  std::vector<std::string> words;
  for (const char* key : {"cpu_model", "cpus", "cpu_best_isa", "l3_bytes", "gpus", "sm"})
    words.push_back(cat(key, " ", word_of(member(machine, key))));
  return join(words);
}

double drift_of(const Json& file) {
  if (file.contains("copy")) {
    const double start = number_of(file["copy"], "start"), end = number_of(file["copy"], "end");
    require(start > 0 && end > 0, "its copy rate is not above 0");
    return std::fabs(end / start - 1);
  }
  if (!file.contains("roof")) return 0;
  double worst = 0;
  for (const char* rate : {"gbps", "gflops"}) {
    const double start = number_of(member(file["roof"], "start"), rate),
                 end = number_of(member(file["roof"], "end"), rate);
    require(start > 0 && end > 0, "its roof is not above 0");
    worst = std::max(worst, std::fabs(end / start - 1));
  }
  return worst;
}

const Kind& kind_of(const std::string& schema) {
  std::vector<std::string> known;
  for (const Kind& kind : kinds()) {
    if (kind.schema == schema) return kind;
    known.emplace_back(kind.schema);
  }
  throw UsageError(cat("its schema '", schema, "' is not one that this version reads: ",
                       join(known), "; make it anew with this version"));
}

/// Appends "key value" of those that `object` has.
void add_words(const Json& object, const std::vector<std::string>& keys,
               std::vector<std::string>& words) {
  for (const std::string& key : keys)
    if (object.contains(key) && !object[key].is_null() &&
        !(object[key].is_array() && object[key].empty()))
      words.push_back(cat(key, " ", word_of(object[key])));
}

/// The times that `timed` holds under time_us; of a row of its own, with its calls as samples.
void add_times(const Json& timed, std::string_view state, const std::string& words, Result& out) {
  const Json& time = member(timed, "time_us");
  if (time.is_null()) return;  // not timed, and the row says why
  const bool counts = time.contains("samples");
  const Timed t{number_of(time, "p50"), number_of(time, "p90"),
                std::int64_t(number_of(counts ? time : timed, counts ? "samples" : "calls"))};
  require(t.p50 > 0 && t.p90 >= t.p50 && t.samples > 0, "the times of ", words,
          " are not those of any call");
  const bool fresh = out.times.insert({{words, std::string(state)}, t}).second;
  require(fresh, "it has ", words, ", ", state, " twice; keep one");
}

void add_row(const Kind& kind, const Json& file, const Json& row, Result& out) {
  require(row.is_object(), "it has a row that is no object");
  std::vector<std::string> words;
  add_words(row, kind.keys, words);
  require(!words.empty(), "it has a row that says of nothing what it is");
  add_words(file, kind.file_keys, words);
  if (row.contains("ok") && !flag_of(row, "ok")) out.wrong_rows.push_back(join(words));
  if (kind.row_is_timed) add_times(row, kRowItself, join(words), out);
  for (const std::string& state : kind.states)
    if (row.contains(state)) add_times(row[state], state, join(words), out);
}

Result read_result(const std::string& name, const std::string& text) {
  const Json file = Json::parse(text, nullptr, false);
  require(!file.is_discarded() && file.is_object() && file.contains("schema"), name,
          " is no result of a benchmark: it is ",
          file.is_discarded() ? "not JSON" : "no JSON object with a 'schema'",
          "; give a file that a benchmark printed as JSON");
  try {
    Result out;
    out.name = name;
    out.schema = text_of(file, "schema");
    const Kind& kind = kind_of(out.schema);
    out.machine = machine_of(member(file, "machine"));
    out.tier = text_of(file["machine"], "cpu_isa");
    out.drift = drift_of(file);
    out.ok = flag_of(file, "ok");
    for (const std::string& list : kind.lists)
      for (const Json& row : list_of(file, list)) add_row(kind, file, row, out);
    return out;
  } catch (const UsageError& e) {
    throw UsageError(cat(name, " cannot be compared: ", e.what()));
  }
}

/// Standard error of a median, as a share of it, from the distance of p90 and p50.
double median_error(const Timed& t) {
  constexpr double kP90 = 1.2816, kMedian = 1.2533;  // of a normal distribution
  return kMedian * (t.p90 - t.p50) / kP90 / t.p50 / std::sqrt(double(t.samples));
}

ComparedRow judge(const Timed& before, const Timed& after, double least) {
  ComparedRow row;
  row.before = before.p50;
  row.after = after.p50;
  row.ratio = after.p50 / before.p50;
  row.bound = std::max(least, 3 * std::hypot(median_error(before), median_error(after)));
  if (row.ratio > 1 + row.bound) row.change = Change::kSlower;
  if (row.ratio < 1 / (1 + row.bound)) row.change = Change::kFaster;
  return row;
}

void check_machines(const Result& a, const Result& b, Comparison& out, bool across) {
  require(a.schema == b.schema, a.name, " is of schema ", a.schema, " and ", b.name, " of ",
          b.schema, "; compare results of one kind");
  require(across || a.machine == b.machine, "the results are of different machines, ", a.name,
          " of (", a.machine, ") and ", b.name, " of (", b.machine,
          "), so their times say nothing of a change; ask across machines to see them anyway");
  if (a.machine != b.machine) out.notices.push_back("the machines differ: " + b.machine);
  if (a.tier != b.tier)
    out.notices.push_back(
        cat("the instruction tiers differ: ", a.tier, " before, ", b.tier, " after"));
}

/// Times of wrong results are times of something else. True when every result was right.
bool note_wrong(const Result& r, Comparison& out) {
  for (const std::string& row : r.wrong_rows)
    out.notices.push_back(
        cat(r.name, ": ", row, " gave wrong results (ok is false); its times mean nothing"));
  if (!r.ok && r.wrong_rows.empty())
    out.notices.push_back(
        cat(r.name, ": its results were wrong (ok is false); no time of it counts"));
  return r.ok && r.wrong_rows.empty();
}

std::string row_name(const std::pair<std::string, std::string>& key) {
  return cat(key.first, ", ", key.second);
}

}  // namespace

std::string_view to_string(Change change) {
  constexpr std::string_view kNames[] = {"faster", "slower", "within noise"};
  return kNames[std::size_t(change)];
}

std::string_view compare_rule() {
  return "a row's bound is the largest of the noise, three standard errors of both medians (from "
         "p90 - p50), and the drift of either session's roof or copy rate";
}

Comparison compare_benches(const CompareOptions& o) {
  require(o.noise >= 0 && o.noise < 10, "noise = ", o.noise,
          " is outside 0..10; it is a share, "
          "0.05 for 5 %");
  const Result a = read_result(o.before_name, o.before), b = read_result(o.after_name, o.after);
  Comparison out;
  out.schema = a.schema;
  check_machines(a, b, out, o.across_machines);
  const double least = std::max({o.noise, a.drift, b.drift});
  for (const auto& [key, before] : a.times) {
    const auto found = b.times.find(key);
    if (found == b.times.end()) {
      out.only_before.push_back(row_name(key));
      continue;
    }
    out.rows.push_back(judge(before, found->second, least));
    out.rows.back().key = key.first;
    out.rows.back().state = key.second;
  }
  for (const auto& [key, after] : b.times)
    if (a.times.find(key) == a.times.end()) out.only_after.push_back(row_name(key));
  require(!out.rows.empty(), o.before_name, " and ", o.after_name,
          " have no row in common; compare runs of the same shapes, formats, tokens and threads");
  if (std::max(a.drift, b.drift) > o.noise)
    out.notices.push_back(cat("a session's roof drifted by ",
                              int(std::lround(100 * std::max(a.drift, b.drift))),
                              "%, which widens every bound; a quiet machine tells more"));
  const bool right_before = note_wrong(a, out), right_after = note_wrong(b, out);
  out.ok = right_before && right_after &&
           std::none_of(out.rows.begin(), out.rows.end(),
                        [](const ComparedRow& r) { return r.change == Change::kSlower; });
  return out;
}

}  // namespace switchyard
