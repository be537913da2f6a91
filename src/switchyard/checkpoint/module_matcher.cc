// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/module_matcher.h"

#include <algorithm>

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
  if (exact_.empty() && globs_.empty()) return nullptr;
  for (;;) {
    if (const std::string* value = match_path(module)) return value;
    std::size_t dot = module.rfind('.');
    if (dot == std::string_view::npos) return nullptr;
    module = module.substr(0, dot);
  }
}

std::vector<std::pair<std::string, std::string>> ModuleMatcher::entries() const {
  std::vector<std::pair<std::string, std::string>> out(exact_.begin(), exact_.end());
  out.insert(out.end(), globs_.begin(), globs_.end());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace switchyard::checkpoint
