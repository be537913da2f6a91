// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/pairwise.h"

#include <set>
#include <tuple>

namespace switchyard::test {
namespace {

/// Level `a` of factor `f` beside level `b` of factor `g`, f < g.
using Pair = std::tuple<int, int, int, int>;  // f, a, g, b

Pair pair_of(int f, int a, int g, int b) { return f < g ? Pair{f, a, g, b} : Pair{g, b, f, a}; }

/// How many open pairs level `a` of factor `f` would close in a row; -1 is a level not yet chosen.
int gain(const std::set<Pair>& open, const std::vector<int>& row, int f, int a) {
  int out = 0;
  for (int g = 0; g < int(row.size()); ++g)
    if (g != f && row[std::size_t(g)] >= 0)
      out += int(open.count(pair_of(f, a, g, row[std::size_t(g)])));
  return out;
}

}  // namespace

std::vector<std::vector<int>> pairwise(std::span<const int> levels) {
  std::set<Pair> open;
  const int factors = int(levels.size());
  for (int f = 0; f < factors; ++f)
    for (int g = f + 1; g < factors; ++g)
      for (int a = 0; a < levels[std::size_t(f)]; ++a)
        for (int b = 0; b < levels[std::size_t(g)]; ++b) open.insert({f, a, g, b});
  std::vector<std::vector<int>> out;
  while (!open.empty()) {
    std::vector<int> row(levels.size(), -1);
    const auto [f, a, g, b] = *open.begin();
    row[std::size_t(f)] = a;
    row[std::size_t(g)] = b;
    for (int h = 0; h < factors; ++h) {
      if (row[std::size_t(h)] >= 0) continue;
      int best = 0, most = -1;
      for (int i = 0; i < levels[std::size_t(h)]; ++i) {
        // Start elsewhere in each row, or level 0 would win every tie.
        const int level = (i + int(out.size())) % levels[std::size_t(h)];
        if (const int n = gain(open, row, h, level); n > most) {
          most = n;
          best = level;
        }
      }
      row[std::size_t(h)] = best;
    }
    for (int i = 0; i < factors; ++i)
      for (int j = i + 1; j < factors; ++j)
        open.erase({i, row[std::size_t(i)], j, row[std::size_t(j)]});
    out.push_back(std::move(row));
  }
  return out;
}

std::vector<std::vector<int>> all_combinations(std::span<const int> levels) {
  std::vector<std::vector<int>> out;
  std::vector<int> row(levels.size(), 0);
  for (;;) {
    out.push_back(row);
    std::size_t f = 0;
    while (f < row.size() && ++row[f] == levels[f]) row[f++] = 0;
    if (f == row.size()) return out;
  }
}

}  // namespace switchyard::test
