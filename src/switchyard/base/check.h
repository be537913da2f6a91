// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/base/errors.h"
#include "switchyard/base/text.h"

namespace switchyard {

/// Throws UsageError with the joined `parts` when `ok` is false: the caller broke a stated rule.
template <class... Args>
void require(bool ok, const Args&... parts) {
  if (!ok) throw UsageError(cat(parts...));
}

/// Throws InternalError with the joined `parts` when `ok` is false: we broke our own invariant.
template <class... Args>
void ensure(bool ok, const Args&... parts) {
  if (!ok) throw InternalError(cat(parts...));
}

}  // namespace switchyard
