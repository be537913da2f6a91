// SPDX-License-Identifier: Apache-2.0
#include "cli/failure.h"

#include <new>

#include "cli/command.h"
#include "switchyard/api/moe_layer.h"
#include "switchyard/base/errors.h"

namespace switchyard::cli {

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
    return {kFailed, "memory is exhausted; use a smaller layer or fewer tokens"};
  } catch (const std::exception& e) {
    return {kFailed, std::string("internal error, please report it: ") + e.what()};
  }
}

}  // namespace switchyard::cli
