// SPDX-License-Identifier: Apache-2.0
#include "tests/support/activation_case.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace switchyard::test {
namespace {

constexpr float kPoison = -1.25e30f;
constexpr std::int64_t kPadding = 5;
constexpr double kUlp = 0x1p-24;

PerExpert distinct(float a, float b, float c) { return PerExpert(std::vector<float>{a, b, c}); }

}  // namespace

// A sigmoid is worth 5 roundings, tanh 3, the distribution function 11; the exponent of the tanh
// form reaches 35 on these inputs and carries 4 roundings of its own size.
const std::vector<ActivationKind> kActivationKinds = {
    {Swiglu{}, 16 * kUlp},
    {Swiglu{.clamp = distinct(1.5f, 2.5f, 4.0f)}, 16 * kUlp, true},
    {Swiglu{.clamp = distinct(1.0f, 2.0f, 3.0f), .clamp_after_silu = true}, 16 * kUlp, true},
    {SwigluBias{}, 32 * kUlp},
    {SwigluBias{.gate_sigmoid_scale = distinct(1.702f, 1.1f, 0.7f),
                .linear_offset = distinct(1.0f, 0.25f, -2.0f),
                .clamp = distinct(2.0f, 3.0f, 4.0f)},
     32 * kUlp, true},
    {SiTu{}, 32 * kUlp},
    {SiTu{.gate_softcap = distinct(4.0f, 1.0f, 2.0f),
          .linear_softcap = distinct(25.0f, 3.0f, 9.0f)},
     32 * kUlp, true},
    {Geglu{GeluForm::kTanh}, 280 * kUlp},
    {Relu2{}, 4 * kUlp},
    {Geglu{GeluForm::kErf}, 32 * kUlp},
    {Silu{}, 16 * kUlp},
    {Gelu{GeluForm::kTanh}, 280 * kUlp},
    {Relu{}, 4 * kUlp},
    {Gelu{GeluForm::kErf}, 32 * kUlp},
    {Identity{}, 4 * kUlp},
};

const std::vector<std::pair<std::int64_t, std::int64_t>> kActivationShapes = {
    {0, 64}, {1, 1}, {3, 31}, {7, 15}, {4, 16}, {2, 17}, {5, 96}, {64, 768}, {3, 2880}};

ActivationCase::ActivationCase(const Activation& activation, std::int64_t num_rows,
                               std::int64_t width)
    : rows(num_rows), inter(width), stride(width + kPadding) {
  std::mt19937 random(unsigned(1000 * rows + inter));
  std::uniform_real_distribution<float> spread(-7.0f, 7.0f);
  const auto count = std::size_t(rows * stride);
  gate.assign(count, NAN);
  up.assign(count, NAN);
  out.assign(count, kPoison);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < inter; ++c) {
      gate[std::size_t(r * stride + c)] = spread(random);
      up[std::size_t(r * stride + c)] = spread(random);
    }
    expert_ids.push_back(std::int32_t(r % 4 == 3 ? -1 : r % 4));
  }
  for (std::int64_t e = 0; e < kActivationExperts; ++e) params.push_back(lower(activation, e));
}

ops::ActivationArgs ActivationCase::args() {
  const bool gated = is_gated(params[0].type);
  return {.kind = params[0],
          .gate = {gated ? gate.data() : nullptr, rows, inter, stride},
          .up = {up.data(), rows, inter, stride},
          .expert_ids = expert_ids.data(),
          .params = params.data(),
          .num_params = std::int64_t(params.size()),
          .out = {out.data(), rows, inter, stride}};
}

const ActivationParams& ActivationCase::params_of_row(std::int64_t r) const {
  return params[std::size_t(expert_ids[std::size_t(r)])];
}

std::vector<float> ActivationCase::oracle() {
  std::vector<float> want(std::size_t(rows * inter));
  ops::ActivationArgs a = args();
  a.out = {want.data(), rows, inter, inter};
  ops::activation_ref(a);
  return want;
}

std::vector<float> ActivationCase::result() const {
  std::vector<float> dense;
  for (std::int64_t r = 0; r < rows; ++r)
    dense.insert(dense.end(), out.begin() + r * stride, out.begin() + r * stride + inter);
  return dense;
}

void ActivationCase::poison() { std::fill(out.begin(), out.end(), kPoison); }

bool ActivationCase::padding_is_intact() const {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = inter; c < stride; ++c)
      if (out[std::size_t(r * stride + c)] != kPoison) return false;
  return true;
}

double worst_error(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return HUGE_VAL;
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    const double error = std::fabs(double(got[i]) - double(want[i]));
    if (error == 0) continue;
    const double relative = error / std::fabs(double(want[i]));
    if (!(relative <= worst)) worst = std::isnan(relative) ? HUGE_VAL : relative;
  }
  return worst;
}

}  // namespace switchyard::test
