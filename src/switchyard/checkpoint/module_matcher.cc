// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/module_matcher.h"

#include <algorithm>

#include "switchyard/base/text.h"

namespace switchyard::checkpoint {

bool glob_match(std::string_view glob, std::string_view text) {
  std::size_t g = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      resume = t;
    } else if (g < glob.size() && glob[g] == text[t]) {
      ++g, ++t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

void ModuleMatcher::add(std::string pattern, std::string value) {
  if (pattern.find('*') == std::string::npos)
    exact_.emplace(std::move(pattern), std::move(value));
  else
    globs_.emplace_back(std::move(pattern), std::move(value));
}

void ModuleMatcher::add_expression(std::string_view expression, std::string value,
                                   std::string_view where) {
  patterns_.emplace_back(ModulePattern(expression, where), std::move(value));
  expressions_.emplace_back(expression);
}

const std::string* ModuleMatcher::match_path(std::string_view path) const {
  if (auto it = exact_.find(std::string(path)); it != exact_.end()) return &it->second;
  for (const auto& [glob, value] : globs_)
    if (glob_match(glob, path)) return &value;
  for (std::string_view tail = path; suffixes_;) {
    std::size_t dot = tail.find('.');
    if (dot == std::string_view::npos) break;
    tail.remove_prefix(dot + 1);
    if (auto it = exact_.find(std::string(tail)); it != exact_.end()) return &it->second;
  }
  return nullptr;
}

const std::string* ModuleMatcher::match(std::string_view module) const {
  bool any = !exact_.empty() || !globs_.empty();
  for (std::string_view path = module; any;) {
    if (const std::string* value = match_path(path)) return value;
    std::size_t dot = path.rfind('.');
    if (dot == std::string_view::npos) break;
    path = path.substr(0, dot);
  }
  for (const auto& [pattern, value] : patterns_)
    if (pattern.match(module)) return &value;
  return nullptr;
}

std::vector<std::pair<std::string, std::string>> ModuleMatcher::entries() const {
  std::vector<std::pair<std::string, std::string>> out(exact_.begin(), exact_.end());
  out.insert(out.end(), globs_.begin(), globs_.end());
  for (std::size_t i = 0; i < patterns_.size(); ++i)
    out.emplace_back(cat("re:", expressions_[i]), patterns_[i].second);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace switchyard::checkpoint
