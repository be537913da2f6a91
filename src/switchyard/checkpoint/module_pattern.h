// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::checkpoint {

/// A regular expression over module paths, as quantisation lists write them behind "re:".
///
/// Serves literals, `.`, classes, \d \w \s and their complements, groups, `|`, `*`, `+`, `?` and
/// anchors. Matches from the first character on and need not reach the last, as Python's re.match
/// does. Takes time in proportion to text times pattern: a checkpoint cannot make it hang.
class ModulePattern {
 public:
  /// Errors: UsageError naming `where`, the expression and what is not served in it.
  ModulePattern(std::string_view expression, std::string_view where);

  /// True when the expression matches a prefix of `text`.
  bool match(std::string_view text) const;

 private:
  friend class PatternParser;
  enum class Op : std::uint8_t { kSet, kSplit, kBegin, kEnd, kMatch };
  struct Step {
    Op op = Op::kMatch;
    std::bitset<256> set;
    std::size_t next = 0, other = 0;  // kSplit goes both ways
  };
  void follow(std::size_t at, std::size_t position, std::size_t size, std::vector<bool>& seen,
              std::vector<std::size_t>& states) const;

  std::vector<Step> steps_;
  std::size_t start_ = 0;
};

}  // namespace switchyard::checkpoint
