// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/behind_tensors.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "switchyard/base/random.h"
#include "switchyard/base/sha256.h"
#include "switchyard/layer/judge.h"

namespace switchyard {

BehindTensors::BehindTensors(std::int64_t hidden, Dtype dtype, std::int64_t tokens,
                             std::uint64_t seed)
    : hidden_(hidden), tokens_(tokens), dtype_(dtype) {
  constexpr std::uint64_t kResidual = 71, kGamma = 72;
  const Random residual(seed, kResidual), gamma(seed, kGamma);
  const std::size_t bytes = std::size_t(tokens * hidden) * size_of(dtype);
  residual_.resize(bytes);
  residual_out_.resize(bytes);
  norm_out_.resize(bytes);
  gamma_.resize(std::size_t(hidden) * size_of(dtype));
  for (std::int64_t i = 0; i < tokens * hidden; ++i)
    store_element(dtype, residual_.data(), i, residual.normal(std::uint64_t(i)));
  for (std::int64_t h = 0; h < hidden; ++h)
    store_element(dtype, gamma_.data(), h, 0.5F + gamma.uniform(std::uint64_t(h)));
}

void BehindTensors::poison() {
  std::ranges::fill(residual_out_, std::byte(0xff));  // NaN in every dtype
  std::ranges::fill(norm_out_, std::byte(0xff));
}

BehindLayer BehindTensors::args() {
  poison();
  return {.residual_in = residual_.data(),
          .rms_gamma = gamma_.data(),
          .residual_out = residual_out_.data(),
          .norm_out = norm_out_.data()};
}

double BehindTensors::rel_l2(const std::vector<std::byte>& sum) const {
  const double eps = BehindLayer().rms_eps;
  std::vector<double> residual, norm, want_residual, want_norm;
  for (std::int64_t t = 0; t < tokens_; ++t) {
    double squares = 0;
    for (std::int64_t i = t * hidden_; i < (t + 1) * hidden_; ++i) {
      residual.push_back(load_element(dtype_, residual_out_.data(), i));
      norm.push_back(load_element(dtype_, norm_out_.data(), i));
      want_residual.push_back(double(load_element(dtype_, sum.data(), i)) +
                              double(load_element(dtype_, residual_.data(), i)));
      squares += residual.back() * residual.back();
    }
    const double rstd = 1 / std::sqrt(squares / double(hidden_) + eps);
    for (std::int64_t h = 0; h < hidden_; ++h)
      want_norm.push_back(residual[std::size_t(t * hidden_ + h)] * rstd *
                          double(load_element(dtype_, gamma_.data(), h)));
  }
  const double of_residual = layer::rel_l2(residual.data(), want_residual.data(), residual.size());
  const double of_norm = layer::rel_l2(norm.data(), want_norm.data(), norm.size());
  // A NaN is the larger one.
  return std::isnan(of_residual) || of_residual > of_norm ? of_residual : of_norm;
}

bool BehindTensors::same_on_all(comm::Group& group) const {
  std::string all(reinterpret_cast<const char*>(residual_out_.data()), residual_out_.size());
  all.append(reinterpret_cast<const char*>(norm_out_.data()), norm_out_.size());
  const std::string digest = sha256_hex(all);
  for (const std::string& other : group.all_gather(digest, "comparison of the ranks' outputs"))
    if (other != digest) return false;
  return true;
}

}  // namespace switchyard
