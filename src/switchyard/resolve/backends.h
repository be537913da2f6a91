// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/base/device.h"
#include "switchyard/resolve/report.h"

namespace switchyard::resolve {

/// What a preference word amounts to here.
struct Preference {
  std::optional<Device> device;        // asked for, else open
  std::optional<Rejection> rejection;  // a retired word, or the oracle
  bool final = false;                  // the rejection stands: nothing may stand in
};

/// Reads `--prefer`: a device, or an ancestor's backend word in any case. Every backend of theirs
/// is a GPU one and maps to cuda; AUTO prefers nothing; retired words are backend_deprecated;
/// VANILLA is the oracle, which nothing substitutes, and not_an_impl. Errors: UsageError for an
/// unknown word, with the near or known ones.
Preference to_preference(std::string_view word);

/// Every word that to_preference() takes, for help texts.
std::vector<std::string> preference_words();

}  // namespace switchyard::resolve
