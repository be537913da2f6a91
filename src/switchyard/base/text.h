// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <locale>
#include <sstream>
#include <string>

namespace switchyard {

/// Joins the printed forms of its arguments; the core's only formatter (it depends on no library).
/// Numbers look the same under every global locale: fingerprints and canonical texts are made here.
template <class... Args>
std::string cat(const Args&... args) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << args);
  return out.str();
}

}  // namespace switchyard
