// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace switchyard {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& known) {
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const std::string& candidate : known) {
    std::size_t distance = edit_distance(word, candidate);
    if (distance <= std::max<std::size_t>(1, std::min(word.size(), candidate.size()) / 3))
      near.emplace_back(distance, candidate);
  }
  std::stable_sort(near.begin(), near.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  if (near.size() > 3) near.resize(3);
  std::vector<std::string> out;
  for (auto& [distance, candidate] : near) out.push_back(std::move(candidate));
  return out;
}

std::vector<std::string> nearest_or_closest(std::string_view word,
                                            const std::vector<std::string>& known) {
  std::vector<std::string> out = nearest(word, known);
  if (!out.empty() || known.empty()) return out;
  return {*std::min_element(known.begin(), known.end(), [&](const auto& a, const auto& b) {
    return edit_distance(word, a) < edit_distance(word, b);
  })};
}

std::string join(const std::vector<std::string>& words, std::string_view separator) {
  std::string out;
  for (const std::string& word : words) out.append(out.empty() ? "" : separator).append(word);
  return out;
}

std::string suggest(std::string_view word, const std::vector<std::string>& known) {
  std::vector<std::string> near = nearest(word, known);
  return near.empty() ? "known: " + join(known) : "did you mean " + join(near, " or ") + "?";
}

std::string normalise_word(std::string_view word) {
  auto blank = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!word.empty() && blank(word.front())) word.remove_prefix(1);
  while (!word.empty() && blank(word.back())) word.remove_suffix(1);
  std::string out(word);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return out;
}

}  // namespace switchyard
