// SPDX-License-Identifier: Apache-2.0
#include "switchyard/tune/table.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "switchyard/base/check.h"
#include "switchyard/base/whole_file.h"
#include "switchyard/checkpoint/json_text.h"
#include "switchyard/checkpoint/mapped_file.h"

namespace switchyard::tune {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr std::string_view kFormat = "switchyard.tuning";
constexpr std::size_t kMaxFileBytes = 16u << 20;
constexpr std::int64_t kMostNumber = std::int64_t(1) << 40;
constexpr double kMostTime = 1e12;

// ---- writing ----

template <class T>
Ordered fields_json(const T& value) {
  Ordered out = Ordered::object();
  T::each([&](const char* name, auto member) { out[name] = value.*member; });
  return out;
}

Ordered tactic_json(const Tactic& tactic) {
  return std::visit([](const auto& t) { return fields_json(t); }, tactic);
}

Ordered entry_json(const TableEntry& e) {
  return {{"call", fields_json(e.key)},  {"tactic", tactic_json(e.tactic)},
          {"plan", tactic_json(e.plan)}, {"us", e.us},
          {"plan_us", e.plan_us},        {"noise", e.noise},
          {"candidates", e.candidates},  {"rounds", e.rounds}};
}

// ---- reading ----

/// An object of the file, whose keys are all read: a missing or unknown one is an error.
class Object {
 public:
  Object(const json& value, std::string where) : value_(value), where_(std::move(where)) {
    require(value.is_object(), where_, ": is ", checkpoint::show_json(value),
            ", must be an object as `switchyard tune` writes it");
  }

  const json& at(const std::string& key) {
    const auto found = value_.find(key);
    require(found != value_.end(), where_, ": has no '", key,
            "'; it is no tuning table, or damaged; tune again");
    read_.push_back(key);
    return *found;
  }
  void read(const std::string& key, std::string& out) {
    const json& v = at(key);
    require(v.is_string(), where_, ": '", key, "' is ", checkpoint::show_json(v),
            ", must be a text");
    out = v.get<std::string>();
  }
  void read(const std::string& key, bool& out) {
    const json& v = at(key);
    require(v.is_boolean(), where_, ": '", key, "' is ", checkpoint::show_json(v),
            ", must be true or false");
    out = v.get<bool>();
  }
  void read(const std::string& key, std::int64_t& out) { out = whole(at(key), key); }
  void read(const std::string& key, double& out) {
    const json& v = at(key);
    const bool good = v.is_number() && std::isfinite(v.get<double>()) && v.get<double>() >= 0 &&
                      v.get<double>() <= kMostTime;
    require(good, where_, ": '", key, "' is ", checkpoint::show_json(v),
            ", must be a number from 0 to ", kMostTime);
    out = v.get<double>();
  }
  template <class T>
  void read_fields(T& out) {
    T::each([&](const char* name, auto member) { read(name, out.*member); });
    end();
  }
  /// Every key was read.
  void end() const {
    for (const auto& [key, _] : value_.items())
      require(std::find(read_.begin(), read_.end(), key) != read_.end(), where_, ": key '",
              checkpoint::show_name(key), "' is unknown in version ", kTableVersion, "; remove it");
  }
  std::int64_t whole(const json& v, const std::string& key) const {
    const bool good =
        v.is_number_unsigned() && v.get<std::uint64_t>() <= std::uint64_t(kMostNumber);
    require(good, where_, ": '", key, "' is ", checkpoint::show_json(v),
            ", must be a whole number up to ", kMostNumber);
    return v.get<std::int64_t>();
  }
  const std::string& where() const { return where_; }

 private:
  const json& value_;
  std::string where_;
  std::vector<std::string> read_;
};

Tactic parse_tactic(const json& value, const std::string& where) {
  const Object object(value, where);
  std::vector<std::pair<std::string, std::int64_t>> fields;
  for (const auto& [key, v] : value.items()) fields.emplace_back(key, object.whole(v, key));
  return make_tactic(fields, where);
}

TableEntry parse_entry(const json& value, const std::string& where) {
  Object object(value, where);
  TableEntry e;
  Object(object.at("call"), where + ", 'call'").read_fields(e.key);
  require(e.key.tokens >= 1 && token_bucket(e.key.tokens) == e.key.tokens, where,
          ", 'call': 'tokens' is ", e.key.tokens, ", must be a power of two");
  e.tactic = parse_tactic(object.at("tactic"), where + ", 'tactic'");
  e.plan = parse_tactic(object.at("plan"), where + ", 'plan'");
  object.read("us", e.us);
  object.read("plan_us", e.plan_us);
  object.read("noise", e.noise);
  object.read("candidates", e.candidates);
  object.read("rounds", e.rounds);
  object.end();
  for (const auto& [name, us] : {std::pair("us", e.us), std::pair("plan_us", e.plan_us)})
    require(us > 0, where, ": '", name, "' is 0, and a call takes time; the file is damaged");
  return e;
}

void check_kind(Object& root) {
  const json& format = root.at("format");
  require(format == kFormat, root.where(), ": 'format' is ", checkpoint::show_json(format),
          ", must be \"", kFormat, "\"; it is another kind of file");
  const json& version = root.at("version");
  require(version == kTableVersion, root.where(), ": 'version' is ", checkpoint::show_json(version),
          ", this library reads ", kTableVersion, "; write the table again with switchyard tune");
}

const FileKind kTableFile = {.name = "tuning table of this version", .read = read_table};

std::string text_of(const Machine& m) {
  return cat("cpu '", m.cpu_model, "' (", m.isa, "), gpu '", m.gpu, "' (sm ", m.sm, ")");
}

}  // namespace

Machine machine_of(const Environment& env, std::string_view gpu) {
  return {env.cpu_model, std::string(to_string(env.isa)), std::string(gpu), env.sm};
}

const TableEntry* TuningTable::find(const CallKey& key) const {
  for (const TableEntry& e : entries)
    if (e.key == key) return &e;
  return nullptr;
}

void TuningTable::put(TableEntry entry) {
  for (TableEntry& known : entries)
    if (known.key == entry.key) {
      known = std::move(entry);
      return;
    }
  entries.push_back(std::move(entry));
}

std::string table_text(const TuningTable& table) {
  Ordered entries = Ordered::array();
  for (const TableEntry& e : table.entries) entries.push_back(entry_json(e));
  const Ordered root = {{"format", kFormat},
                        {"version", kTableVersion},
                        {"build", table.build},
                        {"fingerprint", table.fingerprint},
                        {"machine", fields_json(table.machine)},
                        {"entries", std::move(entries)}};
  return root.dump(1) + "\n";
}

TuningTable parse_table(std::string_view text, std::string_view where) {
  const json value = checkpoint::parse_json(text, where);
  Object root(value, std::string(where));
  check_kind(root);
  TuningTable out;
  root.read("build", out.build);
  root.read("fingerprint", out.fingerprint);
  Object(root.at("machine"), cat(where, ": 'machine'")).read_fields(out.machine);
  const json& entries = root.at("entries");
  require(entries.is_array(), where, ": 'entries' is ", checkpoint::show_json(entries),
          ", must be a list");
  root.end();
  for (const json& e : entries) {
    TableEntry entry = parse_entry(e, cat(where, ": entry ", out.entries.size()));
    for (const TableEntry& known : out.entries)
      require(!(known.key == entry.key), where, ": entry ", out.entries.size(), " is of ",
              to_string(entry.key), ", which has one already; remove one of them");
    out.entries.push_back(std::move(entry));
  }
  return out;
}

TuningTable read_table(const std::string& path) {
  return parse_table(checkpoint::read_text_file(path, kMaxFileBytes), path);
}

void check_table_path(const std::string& path) { WholeFile(path, kTableFile); }

void write_table(const TuningTable& table, const std::string& path) {
  WholeFile file(path, kTableFile);
  file.out() << table_text(table);
  file.commit();
}

void require_made_for(const TuningTable& table, const TuningTable& here, std::string_view where,
                      std::string_view remedy) {
  require(table.machine == here.machine, where, ": was tuned on another machine, ",
          text_of(table.machine), "; this is ", text_of(here.machine),
          "; its times do not hold here; ", remedy);
  require(table.build == here.build, where, ": was tuned with another version, ", table.build,
          "; this is ", here.build, ", whose kernels may differ; ", remedy);
  require(table.fingerprint == here.fingerprint, where, ": was tuned under fingerprint ",
          table.fingerprint, ", this process has ", here.fingerprint,
          ": its switches or dependencies differ; ", remedy);
}

void TacticBook::add(const TuningTable& table, TacticOrigin origin, std::string_view where) {
  for (const TableEntry& e : table.entries) {
    const TacticOrigin by = e.tactic != e.plan ? origin : TacticOrigin::kPlanner;
    choices_.push_back({e.key, {e.tactic, by}, std::string(where)});
  }
}

TacticList TacticBook::list_for(const leaves::Leaf& leaf, const ops::FfnCall& call) const {
  TacticList out;
  for (const Choice& choice : choices_) {
    ops::FfnCall asked = call;
    asked.tokens = choice.key.tokens;
    if (!(key_of(leaf, asked) == choice.key)) continue;
    try {
      leaf.ffn->check_tactic(asked, choice.use.tactic);
    } catch (const UsageError& e) {
      throw UsageError(cat(choice.where, ": the entry of ", to_string(choice.key), " cannot run: ",
                           e.what(), "; tune that call anew, with again set (switchyard tune)"));
    }
    out.add(choice.key.tokens, choice.use);
  }
  return out;
}

}  // namespace switchyard::tune
