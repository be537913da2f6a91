// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/identity.h"

#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/base/nearest.h"
#include "switchyard/core/problem.h"

namespace switchyard {
namespace {

constexpr std::string_view kOpen = "*";

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  std::string word = normalise_word(text);
  std::size_t begin = 0, dot = 0;
  while ((dot = word.find('.', begin)) != std::string::npos) {
    parts.push_back(word.substr(begin, dot - begin));
    begin = dot + 1;
  }
  parts.push_back(word.substr(begin));
  return parts;
}

std::vector<std::string> texts(const std::vector<Identity4>& ids) {
  std::vector<std::string> out;
  for (const Identity4& id : ids) out.push_back(id.str());
  return out;
}

}  // namespace

bool is_identity_segment(std::string_view segment) {
  bool after_underscore = true;
  for (char c : segment) {
    bool alphanumeric = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (!alphanumeric && (c != '_' || after_underscore)) return false;
    after_underscore = !alphanumeric;
  }
  return !after_underscore;
}

bool IdentityQuery::matches(const Identity4& id) const {
  auto segments = id.segments();
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (!fields[i].empty() && fields[i] != segments[i]) return false;
  return true;
}

bool IdentityQuery::full() const {
  return std::none_of(fields.begin(), fields.end(), [](const auto& f) { return f.empty(); });
}

std::string IdentityQuery::str() const {
  std::string out;
  for (const std::string& field : fields) {
    if (&field != fields.data()) out += '.';
    out += field.empty() ? std::string(kOpen) : field;
  }
  return out;
}

IdentityQuery parse_identity(std::string_view text) {
  std::vector<std::string> parts = split(text);
  require(parts.size() == 4, "leaf id '", text, "' has ", parts.size(),
          " segments, an id has 4: provider.technique.kernel.format");
  IdentityQuery out;
  for (std::size_t i = 0; i < 4; ++i) {
    require(is_identity_segment(parts[i]), "leaf id '", text, "': ", kIdentityFields[i], " '",
            parts[i], "' is not lower-case letters and digits joined by single underscores");
    out.fields[i] = parts[i];
  }
  return out;
}

IdentityVocabulary::IdentityVocabulary(std::vector<Identity4> ids) : ids_(std::move(ids)) {
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    ensure(std::count(ids_.begin(), ids_.end(), ids_[i]) == 1, "identity ", ids_[i].str(),
           " is registered twice");
    auto segments = ids_[i].segments();
    for (std::size_t f = 0; f < segments.size(); ++f) {
      ensure(is_identity_segment(segments[f]), "identity ", ids_[i].str(), ": segment '",
             segments[f], "' is outside the grammar");
      auto [at, added] = field_.emplace(segments[f], f);
      ensure(added || at->second == f, "identity ", ids_[i].str(), ": token '", segments[f],
             "' is both a ", kIdentityFields[at->second], " and a ", kIdentityFields[f]);
    }
  }
}

std::size_t IdentityVocabulary::field_of(std::string token, std::string_view text) const {
  auto at = field_.find(token);
  if (at != field_.end()) return at->second;
  std::vector<std::string> known;
  for (const auto& [word, field] : field_) known.push_back(word);
  throw UsageError(
      cat("leaf query '", text, "': token '", token, "' is unknown; ", suggest(token, known)));
}

IdentityQuery IdentityVocabulary::parse_query(std::string_view text) const {
  std::vector<std::string> parts = split(text);
  require(parts.size() <= 4, "leaf query '", text, "' has ", parts.size(),
          " segments (wildcards count), at most 4 are legal");
  IdentityQuery query;
  for (std::string& part : parts) {
    require(!part.empty(), "leaf query '", text,
            "' has an empty segment; write '*' for a field that is open");
    if (part == kOpen) continue;
    // The command shows the unquantised format as bf16, and checkpoints spell aliases.
    if (!field_.contains(part) && field_.contains(fold_format(part))) part = fold_format(part);
    std::string& field = query.fields[field_of(part, text)];
    require(field.empty(), "leaf query '", text, "' sets the ",
            kIdentityFields[field_of(part, text)], " twice, by '", field, "' and '", part,
            "'; keep one");
    field = part;
  }
  require(query != IdentityQuery{}, "leaf query '", text,
          "' constrains nothing; name at least one segment, e.g. a format");
  require(!matches(query).empty(), "leaf query '", text,
          "' matches no leaf; registered: ", join(texts(ids_)));
  return query;
}

std::vector<Identity4> IdentityVocabulary::matches(const IdentityQuery& query) const {
  std::vector<Identity4> out;
  std::copy_if(ids_.begin(), ids_.end(), std::back_inserter(out),
               [&](const Identity4& id) { return query.matches(id); });
  return out;
}

}  // namespace switchyard
