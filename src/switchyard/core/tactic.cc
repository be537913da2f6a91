// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/tactic.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "switchyard/base/check.h"
#include "switchyard/base/nearest.h"

namespace switchyard {
namespace {

using Fields = std::span<const std::pair<std::string, std::int64_t>>;

template <class T>
std::string text_of(const T& tactic) {
  std::string out;
  T::each([&](const char* name, auto member) {
    out += cat(out.empty() ? "" : " ", name, "=", tactic.*member);
  });
  return out;
}

/// The tactic whose fields these are, when they are T's and nobody else's.
template <class T>
std::optional<T> read(Fields fields) {
  T out;
  std::size_t found = 0;
  T::each([&](std::string_view name, auto member) {
    for (const auto& [key, value] : fields)
      if (key == name) {
        out.*member = value;
        ++found;
        return;
      }
    found = fields.size() + 1;  // one is missing
  });
  if (found != fields.size()) return std::nullopt;
  return out;
}

template <class T>
std::string names_of() {
  std::vector<std::string> names;
  T::each([&](const char* name, auto) { names.emplace_back(name); });
  return join(names);
}

std::pair<std::string, std::int64_t> parse_field(std::string_view word, std::string_view text) {
  const std::size_t equal = std::min(word.find('='), word.size());
  const std::string_view number = word.substr(std::min(equal + 1, word.size()));
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  require(error == std::errc() && end == number.data() + number.size(), "tactic '", text, "': '",
          word, "' is not NAME=NUMBER");
  return {std::string(word.substr(0, equal)), value};
}

}  // namespace

std::string to_string(const Tactic& tactic) {
  return std::visit([](const auto& t) { return text_of(t); }, tactic);
}

Tactic make_tactic(Fields fields, std::string_view where) {
  for (std::size_t i = 0; i < fields.size(); ++i) {
    require(fields[i].second >= 0, where, ": ", fields[i].first, " = ", fields[i].second,
            " is negative");
    for (std::size_t j = 0; j < i; ++j)
      require(fields[i].first != fields[j].first, where, ": ", fields[i].first,
              " is given twice; give it once");
  }
  if (const auto panels = read<PanelTactic>(fields)) return *panels;
  if (const auto tiles = read<TileTactic>(fields)) return *tiles;
  throw UsageError(cat(where, ": these are not the fields of a tactic; a CPU's has ",
                       names_of<PanelTactic>(), ", a GPU's ", names_of<TileTactic>()));
}

Tactic to_tactic(std::string_view text) {
  std::vector<std::pair<std::string, std::int64_t>> fields;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    fields.push_back(parse_field(text.substr(at, end - at), text));
    at = end + 1;
  }
  return make_tactic(fields, cat("tactic '", text, "'"));
}

std::string_view to_string(TacticOrigin origin) {
  switch (origin) {
    case TacticOrigin::kPlanner:
      return "planner";
    case TacticOrigin::kShipped:
      return "shipped table";
    case TacticOrigin::kFile:
      return "file";
    case TacticOrigin::kReplay:
      return "replay";
  }
  throw InternalError(cat("tactic origin ", int(origin), " has no text"));
}

std::string to_string(const TacticUse& use) {
  return cat(to_string(use.tactic), " (", to_string(use.origin), ")");
}

std::int64_t token_bucket(std::int64_t tokens) {
  std::int64_t bucket = tokens > 0 ? 1 : 0;
  while (bucket < tokens) bucket *= 2;
  return bucket;
}

void TacticList::add(std::int64_t bucket, const TacticUse& use) {
  for (const auto& [known, _] : entries_)
    if (known == bucket) return;
  entries_.emplace_back(bucket, use);
}

const TacticUse* TacticList::find(std::int64_t tokens) const {
  const std::int64_t bucket = token_bucket(tokens);
  for (const auto& [known, use] : entries_)
    if (known == bucket) return use.origin != TacticOrigin::kPlanner ? &use : nullptr;
  return nullptr;
}

}  // namespace switchyard
