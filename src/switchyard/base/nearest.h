// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/base/check.h"

namespace switchyard {

/// Insertions, deletions and substitutions that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b);
/// Up to three of `known` that are near enough to `word` to be a slip of the pen, nearest first.
std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& known);
/// nearest(), or the one of least edit distance where nothing is that near; empty only for an empty
/// `known`.
std::vector<std::string> nearest_or_closest(std::string_view word,
                                            const std::vector<std::string>& known);
/// "a, b, c"; empty for an empty list.
std::string join(const std::vector<std::string>& words, std::string_view separator = ", ");
/// "did you mean nvfp4?" when something is near, else "known: a, b, c".
std::string suggest(std::string_view word, const std::vector<std::string>& known);
/// ASCII lower case with surrounding blanks removed; never throws a library error.
std::string normalise_word(std::string_view word);

/// The value among `values` whose to_string() is `word`.
/// Errors: UsageError naming `what`, the word and the near or known ones.
template <class E>
E to_enum(std::string_view what, std::string_view word, std::initializer_list<E> values) {
  std::vector<std::string> known;
  for (E value : values) {
    if (to_string(value) == word) return value;
    known.emplace_back(to_string(value));
  }
  throw UsageError(cat(what, " '", word, "' is unknown; use one of ", join(known)));
}

}  // namespace switchyard
