// SPDX-License-Identifier: Apache-2.0
#include "cli/failure.h"

#include <new>

#include "cli/command.h"
#include "switchyard/api/machine.h"
#include "switchyard/api/moe_layer.h"
#include "switchyard/base/errors.h"
#include "switchyard/base/text.h"

namespace switchyard::cli {
namespace {

/// What was available when the command began; empty when that cannot be said.
std::string memory_text() {
  try {
    const std::int64_t bytes = environment().memory_bytes;
    return cat("and ", bytes >> 20, " MiB were available when the command began; ");
  } catch (const std::exception&) {
    return "";
  }
}

}  // namespace

Failure current_failure() {
  try {
    throw;
  } catch (const UsageError& e) {
    return {kBadInput, e.what()};
  } catch (const DeviceError& e) {
    return {kNoDevice, e.what()};
  } catch (const CannotServe& e) {
    return {kFailed, e.what()};
  } catch (const std::bad_alloc&) {
    return {kBadInput, cat("memory is exhausted: the system refused more, ", memory_text(),
                           "use a smaller layer or fewer tokens")};
  } catch (const std::exception& e) {
    return {kFailed, std::string("internal error, please report it: ") + e.what()};
  }
}

}  // namespace switchyard::cli
