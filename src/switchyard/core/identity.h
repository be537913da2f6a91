// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

/// A leaf's name: exactly four lower-case segments, provider.technique.kernel.format.
struct Identity4 {
  std::string_view provider;   // "switchyard"
  std::string_view technique;  // "cpu" or "cuda"
  std::string_view kernel;     // "fused_moe" or "mega_moe"
  std::string_view quant;      // "none" for unquantised

  auto operator<=>(const Identity4&) const = default;
  /// The four segments in order.
  constexpr std::array<std::string_view, 4> segments() const {
    return {provider, technique, kernel, quant};
  }
  /// "switchyard.cpu.fused_moe.nvfp4".
  std::string str() const {
    return std::string(provider) + "." + std::string(technique) + "." + std::string(kernel) + "." +
           std::string(quant);
  }
};

/// Names of the four fields, in the order of the segments.
inline constexpr std::array<std::string_view, 4> kIdentityFields = {"provider", "technique",
                                                                    "kernel", "format"};

/// True for lower-case alphanumerics in groups joined by single underscores.
bool is_identity_segment(std::string_view segment);

/// A partial identity: each field holds a segment, or is empty and matches everything.
struct IdentityQuery {
  std::array<std::string, 4> fields;

  bool operator==(const IdentityQuery&) const = default;
  /// Whether every field that is set equals the identity's segment.
  bool matches(const Identity4& id) const;
  /// Whether all four fields are set.
  bool full() const;
  /// Four segments wide, `*` for an open field; parse_query() reads it back.
  std::string str() const;
};

/// A complete identity from its text, trimmed and case-folded; the segments must stand in order.
/// Errors: UsageError for another number of segments or a segment outside the grammar.
IdentityQuery parse_identity(std::string_view text);

/// Which field each token of a set of identities belongs to.
class IdentityVocabulary {
 public:
  /// Reads the tokens of `ids`.
  /// Errors: InternalError for a duplicate id, a segment outside the grammar, or a token that would
  /// belong to two fields (its identities could not be asked for in any order).
  explicit IdentityVocabulary(std::vector<Identity4> ids);

  /// A query from up to four tokens in any order, joined by dots; `*` claims no field. A format may
  /// be written by any alias that fold_format() knows.
  /// Errors: UsageError for an empty segment, more than four, an unknown token (with up to three
  /// near ones), a field set twice, a query that constrains nothing, one that matches no identity.
  IdentityQuery parse_query(std::string_view text) const;
  /// Every identity that `query` matches, in the order given.
  std::vector<Identity4> matches(const IdentityQuery& query) const;
  /// The identities, in the order given.
  const std::vector<Identity4>& ids() const { return ids_; }

 private:
  std::size_t field_of(std::string token, std::string_view text) const;

  std::vector<Identity4> ids_;
  std::map<std::string, std::size_t, std::less<>> field_;
};

}  // namespace switchyard
