// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace switchyard::api {

/// What a call that is to be made takes of the host.
///
/// Units:   bytes, of all ranks together.
struct CallMemory {
  double bytes = 0;
  std::int64_t tokens = 0, hidden = 0, ranks = 1;

  /// Errors:  UsageError with the bytes that it takes and those that are available; none where the
  /// machine does not say how many are.
  void check() const;
};

}  // namespace switchyard::api
