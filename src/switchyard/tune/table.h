// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/core/environment.h"
#include "switchyard/tune/call_key.h"

namespace switchyard::tune {

/// The machine that times hold for. What a machine does not have is empty.
struct Machine {
  std::string cpu_model, isa, gpu;
  std::int64_t sm = 0;

  bool operator==(const Machine&) const = default;
  /// As CallKey::each().
  template <class Visit>
  static void each(Visit&& visit) {
    visit("cpu_model", &Machine::cpu_model);
    visit("isa", &Machine::isa);
    visit("gpu", &Machine::gpu);
    visit("sm", &Machine::sm);
  }
};

/// This machine; `gpu` as the driver names it.
Machine machine_of(const Environment& env, std::string_view gpu);

/// One choice and what it was taken for.
///
/// Units:   µs, medians; noise as a share of the plan's.
struct TableEntry {
  CallKey key;
  Tactic tactic, plan;
  double us = 0, plan_us = 0, noise = 0;
  std::int64_t candidates = 0, rounds = 0;

  bool operator==(const TableEntry&) const = default;
};

/// What `switchyard tune` writes: choices by call, for one build on one machine.
struct TuningTable {
  std::string build, fingerprint;
  Machine machine;
  std::vector<TableEntry> entries;

  bool operator==(const TuningTable&) const = default;
  /// The entry of a call; null where there is none.
  const TableEntry* find(const CallKey& key) const;
  /// Adds `entry`, in the place of an older one for the same call.
  void put(TableEntry entry);
};

/// The version of the file that is written and read.
inline constexpr std::int64_t kTableVersion = 1;

/// The file's text.
std::string table_text(const TuningTable& table);
/// Inverse of table_text(). Errors: UsageError, one line that names `where`, for text that is no
/// table, one of another version, and a key that is missing, unknown, doubled or out of range.
TuningTable parse_table(std::string_view text, std::string_view where);
/// Reads a file. Errors: as parse_table(), and for a file that cannot be read.
TuningTable read_table(const std::string& path);
/// Whether write_table could write there, found without a change. Errors: as write_table.
void check_table_path(const std::string& path);
/// Writes a file, whole or not at all. Errors: UsageError where something else than a table stands
/// there, or where it cannot be written.
void write_table(const TuningTable& table, const std::string& path);
/// Errors: UsageError, naming what differs and both values, for a table of another machine or
/// another build; `remedy` says what to do about it.
void require_made_for(const TuningTable& table, const TuningTable& here, std::string_view where,
                      std::string_view remedy = "run switchyard tune here, into another file");

/// The choices for `machine` that ship with the library; none where nobody measured there.
TuningTable shipped_table(const Machine& machine);

/// The choices that a process uses, in the order of the tables that they came with.
class TacticBook {
 public:
  /// Adds the choices of a table; those that are there already go before them. An entry whose
  /// tactic is the plan's leaves its bucket to the planner, whatever tables behind it say.
  /// `where` names the table in errors.
  void add(const TuningTable& table, TacticOrigin origin, std::string_view where);
  /// The choices for experts of `call`'s shape, tier and threads; its tokens are not read.
  /// Errors: UsageError, naming table and entry, for a tactic that such experts cannot run.
  TacticList list_for(const leaves::Leaf& leaf, const ops::FfnCall& call) const;
  /// All of them.
  std::size_t size() const { return choices_.size(); }

 private:
  struct Choice {
    CallKey key;
    TacticUse use;
    std::string where;
  };
  std::vector<Choice> choices_;
};

}  // namespace switchyard::tune
