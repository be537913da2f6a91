// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace switchyard {

/// Two results of one kind: of `bench layer` (its search and its layers of ranks are a kind of
/// their own), routing, exchange or allreduce, as their --json printed them.
struct CompareOptions {
  std::string before, after;            // texts
  std::string before_name, after_name;  // for messages, e.g. the files' paths
  double noise = 0.05;                  // the least change that counts, as a share
  bool across_machines = false;
};

/// What the change of one row means.
enum class Change { kFaster, kSlower, kWithinNoise };
/// "faster", "slower" or "within noise".
std::string_view to_string(Change change);

/// One row that both files hold.
///
/// Units:   p50 in µs; ratio = after / before; bound and ratio - 1 are shares.
struct ComparedRow {
  std::string key, state;  // the state is what was timed: fresh, gemm, dispatch
  double before = 0, after = 0, ratio = 1, bound = 0;
  Change change = Change::kWithinNoise;
};

/// The rows of two files side by side.
struct Comparison {
  bool ok = false;  // nothing is slower, and no row of either file gave wrong results
  std::string schema;
  std::vector<ComparedRow> rows;
  std::vector<std::string> only_before, only_after;
  std::vector<std::string> notices;  // e.g. different instruction tiers
};

/// How a bound is made, in one sentence.
std::string_view compare_rule();

/// Matches rows by what was measured (not by instruction tier, version or commit) and judges each
/// p50 against a bound made from both files.
/// Errors:  UsageError, one line: a text that is no benchmark result, another schema, a key that
///          occurs twice, different machines without across_machines, nothing in common.
Comparison compare_benches(const CompareOptions& options);

}  // namespace switchyard
