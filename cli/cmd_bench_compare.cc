// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "cli/command.h"
#include "cli/output.h"
#include "switchyard/api/bench_compare.h"
#include "switchyard/base/nearest.h"

namespace switchyard::cli {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file.is_open() && file.peek() != std::char_traits<char>::eof()) text << file.rdbuf();
  require(file.is_open() && !file.bad() && bool(text), "file ", path, " cannot be read (",
          std::strerror(errno), "); name a file that bench --json wrote");
  return text.str();
}

Json to_json(const Comparison& c) {
  Json rows = Json::array();
  for (const ComparedRow& r : c.rows)
    rows.push_back({{"key", r.key},
                    {"state", r.state},
                    {"before_us", r.before},
                    {"after_us", r.after},
                    {"ratio", r.ratio},
                    {"bound", r.bound},
                    {"change", to_string(r.change)}});
  return {{"ok", c.ok},
          {"compared", c.schema},
          {"rule", compare_rule()},
          {"rows", std::move(rows)},
          {"only_before", c.only_before},
          {"only_after", c.only_after},
          {"notices", c.notices}};
}

std::string text_of(const Comparison& c) {
  Table table({"row", "state", ">before us", ">after us", ">ratio", ">bound", "change"});
  for (const ComparedRow& r : c.rows)
    table.add({r.key, r.state, fixed(r.before, 1), fixed(r.after, 1), fixed(r.ratio, 3),
               cat(fixed(100 * r.bound, 1), "%"), std::string(to_string(r.change))});
  std::string out = table.str();
  for (const std::string& row : c.only_before) out += cat("only before: ", row, "\n");
  for (const std::string& row : c.only_after) out += cat("only after: ", row, "\n");
  for (const std::string& notice : c.notices) out += notice + "\n";
  return out + cat(compare_rule(), "\n");
}

Answer run_command(Arguments& args) {
  CompareOptions options;
  std::optional<float> noise;
  bool json = false;
  args.positional("A.json", options.before_name, "The result before");
  args.positional("B.json", options.after_name, "The result after");
  args.not_negative("--noise", noise, "Least change that counts, as a share (default 0.05)");
  args.toggle("--across-machines", options.across_machines,
              "Compares results of different machines all the same");
  args.toggle("--json", json, "Print JSON");
  if (!args.parse()) return {kOk, args.help()};
  if (noise) options.noise = *noise;
  options.before = read_text(options.before_name);
  options.after = read_text(options.after_name);
  const Comparison c = compare_benches(options);
  return {c.ok ? kOk : kFailed, json ? json_text(to_json(c)) : text_of(c)};
}

}  // namespace

const Command kBenchCompare = {
    .name = "bench compare",
    .summary = "Says which rows of two results became slower or faster beyond their noise",
    .example =
        "switchyard bench compare before.json after.json\n"
        "switchyard bench compare avx512.json amx.json --noise 0.1 --json",
    .run = run_command};

}  // namespace switchyard::cli
