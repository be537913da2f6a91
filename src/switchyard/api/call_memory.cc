// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/call_memory.h"

#include "switchyard/api/machine.h"
#include "switchyard/base/check.h"

namespace switchyard::api {

void CallMemory::check() const {
  const double limit = double(environment().memory_bytes);
  require(limit == 0 || bytes <= limit, "tokens = ", tokens, " x hidden = ", hidden,
          ranks > 1 ? cat(" on ", ranks, " ranks") : "", " takes about ",
          std::int64_t(bytes * 0x1p-20), " MiB and ", std::int64_t(limit * 0x1p-20),
          " MiB are available; ask for fewer tokens");
}

}  // namespace switchyard::api
