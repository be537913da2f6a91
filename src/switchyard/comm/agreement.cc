// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/agreement.h"

#include <algorithm>
#include <vector>

#include "switchyard/base/check.h"

namespace switchyard::comm {
namespace {

constexpr std::size_t kMostTexts = 8;

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    std::size_t end = text.find('\n');
    out.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return out;
}

/// "name = 'value'" of a line.
std::string shown(std::string_view line) {
  const std::size_t tab = line.find('\t');
  return cat(line.substr(0, tab), " = '", line.substr(tab + 1), "'");
}

/// Throws when rank `r`'s lines are not those of rank 0.
void compare(const std::vector<std::string_view>& first, const std::vector<std::string_view>& other,
             std::size_t r, std::string_view phase) {
  for (std::size_t i = 0; i < std::min(first.size(), other.size()); ++i)
    require(first[i] == other[i], phase, ": the ranks differ: rank 0 has ", shown(first[i]),
            ", rank ", r, " has ", shown(other[i]), "; start all ranks alike");
  require(first.size() == other.size(), phase, ": rank 0 compares ", first.size(), " values, rank ",
          r, " ", other.size(), "; run the same build with the same arguments");
}

/// "all 4 ranks", "rank 2" or "ranks 1, 3".
std::string named(const std::vector<std::size_t>& ranks, std::size_t of) {
  if (ranks.size() == of && of > 1) return cat("all ", of, " ranks");
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) out += cat(i == 0 ? "" : ", ", ranks[i]);
  return out;
}

}  // namespace

std::string agreed_text(std::span<const Agreed> values) {
  std::string out;  // one line per value: name, tab, value
  for (const Agreed& v : values) {
    ensure(cat(v.name, v.value).find_first_of("\t\n") == std::string::npos,
           "an agreed value holds a tab or a line end: ", v.name);
    out += cat(v.name, "\t", v.value, "\n");
  }
  return out;
}

void compare_agreed(std::span<const std::string> all, std::string_view phase) {
  // Every rank judges the same texts, against rank 0's, and comes to the same end.
  const std::vector<std::string_view> first = lines_of(all[0]);
  for (std::size_t r = 1; r < all.size(); ++r) compare(first, lines_of(all[r]), r, phase);
}

std::string joined_errors(std::span<const std::string> all) {
  struct Said {
    std::string_view text;
    std::vector<std::size_t> ranks;
  };
  std::vector<Said> said;
  std::size_t others = 0;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    auto at =
        std::find_if(said.begin(), said.end(), [&](const Said& s) { return s.text == all[r]; });
    if (at != said.end()) {
      at->ranks.push_back(r);
    } else if (said.size() < kMostTexts) {
      said.push_back({all[r], {r}});
    } else {
      ++others;
    }
  }
  std::string out;
  for (const Said& s : said)
    out += cat(out.empty() ? "" : "; ", named(s.ranks, all.size()), ": ", s.text);
  if (others > 0) out += cat("; ", others, others == 1 ? " more rank fails" : " more ranks fail");
  return out;
}

}  // namespace switchyard::comm
