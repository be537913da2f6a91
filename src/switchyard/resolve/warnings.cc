// SPDX-License-Identifier: Apache-2.0
#include "switchyard/resolve/warnings.h"

#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace switchyard::resolve {
namespace {

struct Warnings {
  std::mutex mutex;
  WarningSink sink;
  std::set<std::string, std::less<>> seen;
};

Warnings& warnings() {
  static Warnings state;
  return state;
}

}  // namespace

WarningSink set_warning_sink(WarningSink sink) {
  std::lock_guard lock(warnings().mutex);
  return std::exchange(warnings().sink, std::move(sink));
}

void warn(std::string_view text) {
  std::lock_guard lock(warnings().mutex);
  if (warnings().sink) warnings().sink(text);
}

void warn_once(std::string_view key, std::string_view text) {
  std::lock_guard lock(warnings().mutex);
  if (!warnings().seen.emplace(key).second) return;
  if (warnings().sink) warnings().sink(text);
}

void forget_warnings() {
  std::lock_guard lock(warnings().mutex);
  warnings().seen.clear();
}

}  // namespace switchyard::resolve
