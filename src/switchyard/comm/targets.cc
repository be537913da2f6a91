// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/targets.h"

#include <algorithm>

namespace switchyard::comm {

void Targets::by_rank(std::int64_t tokens, const std::int32_t* ids, std::int64_t k,
                      std::span<const std::int32_t> owners, std::int32_t tp) {
  std::fill(num_rows_.begin(), num_rows_.end(), 0);
  for (std::int64_t t = 0; t < tokens; ++t, ids += k) {
    Target* out = of(t);
    std::int64_t n = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      if (ids[j] < 0) continue;
      const std::int32_t rank = owners[std::size_t(ids[j])];
      if (rank < 0) continue;  // nobody holds it any more
      std::int64_t at = 0;
      while (at < n && out[at].rank < rank) ++at;
      if (at < n && out[at].rank == rank) continue;
      std::copy_backward(out + at, out + n, out + n + tp);
      for (std::int32_t i = 0; i < tp; ++i) out[at + i] = {rank + i, 0};
      n += tp;
    }
    std::fill(out + n, out + width_, Target{});
    for (std::int64_t i = 0; i < n; ++i)
      out[i].row = std::int32_t(num_rows_[std::size_t(out[i].rank)]++);
  }
}

}  // namespace switchyard::comm
