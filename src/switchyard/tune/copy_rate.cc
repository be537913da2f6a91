// SPDX-License-Identifier: Apache-2.0
#include "switchyard/tune/copy_rate.h"

#include <algorithm>
#include <cstring>

#include "switchyard/tune/timer.h"

namespace switchyard::tune {
namespace {

constexpr std::size_t kPiece = std::size_t(1) << 20;

double median(const std::vector<double>& all, std::ptrdiff_t begin, std::ptrdiff_t end) {
  return percentile({all.begin() + begin, all.begin() + end}, 0.5);
}

}  // namespace

CopyMeter::CopyMeter(ThreadPool& pool, std::size_t bytes)
    : pool_(pool), from_(bytes / kPiece * kPiece), to_(bytes / kPiece * kPiece) {
  // Untouched pages are all the same zero page.
  std::fill(from_.bytes().begin(), from_.bytes().end(), std::byte(1));
  std::fill(to_.bytes().begin(), to_.bytes().end(), std::byte(2));
}

void CopyMeter::sample(int count) {
  const std::int64_t pieces = std::int64_t(from_.bytes().size() / kPiece);
  for (int i = 0; i < count; ++i) {
    const double start = now_us();
    pool_.for_each(pieces, [&](std::int64_t p, int) {
      const std::size_t at = std::size_t(p) * kPiece;
      std::memcpy(to_.data() + at, from_.data() + at, kPiece);
    });
    rates_.push_back(double(pieces) * double(kPiece) / (now_us() - start) * 1e-3);
  }
}

double CopyMeter::gbps() const {
  constexpr double kHigh = 0.9;
  return percentile(rates_, kHigh);
}

double CopyMeter::early(int count) const {
  return median(rates_, 0, std::min<std::ptrdiff_t>(count, std::ptrdiff_t(rates_.size())));
}

double CopyMeter::late(int count) const {
  const std::ptrdiff_t n = std::ptrdiff_t(rates_.size());
  return median(rates_, n - std::min<std::ptrdiff_t>(count, n), n);
}

}  // namespace switchyard::tune
