// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/synthetic.h"

#include <cmath>

#include "switchyard/base/dtype.h"
#include "switchyard/base/random.h"

namespace switchyard::layer {
namespace {

enum Stream : std::uint64_t {
  kGate,
  kUp,
  kDown,
  kGateBias,
  kUpBias,
  kDownBias,
  kRouter,
  kChoiceBias,
  kLogitBias,
  kExpertScale,
  kHash,
  kSharedGate,
  kStreams
};

constexpr std::int64_t kSharedExpert = 1 << 20;  // its stream number, beyond every expert id
constexpr std::int64_t kLatentStreams = kSharedExpert + 1;
constexpr std::int64_t kVocab = 1024;

Random stream(std::uint64_t seed, std::int64_t expert, Stream s) {
  return Random(seed, std::uint64_t(expert) * kStreams + s);
}

formats::Matrix random_matrix(const Random& random, std::int64_t rows, std::int64_t cols) {
  auto storage = std::make_shared<std::vector<std::byte>>(std::size_t(rows * cols) * 2);
  const float sigma = 1 / std::sqrt(float(cols));
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const std::uint16_t bits = float_to_bf16(random.normal(std::uint64_t(i)) * sigma);
    std::memcpy(storage->data() + i * 2, &bits, 2);
  }
  formats::Matrix m;
  m.rows = rows;
  m.cols = cols;
  m.codes = *storage;
  m.storage = std::move(storage);
  return m;
}

std::vector<float> random_vector(const Random& random, std::int64_t size, float sigma,
                                 float mean = 0) {
  std::vector<float> v(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = mean + sigma * random.normal(i);
  return v;
}

checkpoint::ExpertWeights make_expert(const Problem& p, std::int64_t inter, std::uint64_t seed,
                                      std::int64_t e) {
  const std::int64_t h = p.expert_hidden();
  checkpoint::ExpertWeights w;
  if (p.gated()) w.gate = random_matrix(stream(seed, e, kGate), inter, h);
  w.up = random_matrix(stream(seed, e, kUp), inter, h);
  w.down = random_matrix(stream(seed, e, kDown), h, inter);
  if (!p.expert_bias || e >= kSharedExpert) return w;
  if (p.gated()) w.gate_bias = random_vector(stream(seed, e, kGateBias), inter, 0.1f);
  w.up_bias = random_vector(stream(seed, e, kUpBias), inter, 0.1f);
  w.down_bias = random_vector(stream(seed, e, kDownBias), h, 0.1f);
  return w;
}

checkpoint::RouterWeights make_router(const Problem& p, std::uint64_t seed) {
  const std::int64_t experts = p.num_experts() + p.routing.zero_experts;
  checkpoint::RouterWeights r;
  r.weight =
      random_vector(stream(seed, 0, kRouter), experts * p.hidden, 1 / std::sqrt(float(p.hidden)));
  if (p.routing.choice_bias)
    r.choice_bias = random_vector(stream(seed, 0, kChoiceBias), experts, 0.1f);
  if (p.expert_bias) r.logit_bias = random_vector(stream(seed, 0, kLogitBias), experts, 0.1f);
  if (p.routing.per_expert_scale)
    r.per_expert_scale = random_vector(stream(seed, 0, kExpertScale), p.num_experts(), 0.1f, 1.0f);
  if (p.routing.choice != ChoiceRule::kHash) return r;
  r.vocab = kVocab;
  for (std::int64_t i = 0; i < kVocab; ++i)  // k neighbours from a random start: distinct ids
    for (std::int64_t j = 0; j < p.top_k(); ++j)
      r.hash_table.push_back(std::int32_t(
          (stream(seed, 0, kHash).bits(std::uint64_t(i)) % std::uint64_t(p.num_experts()) +
           std::uint64_t(j)) %
          std::uint64_t(p.num_experts())));
  return r;
}

checkpoint::LatentProjection make_latent(const Problem& p, std::uint64_t seed) {
  checkpoint::LatentProjection out;
  out.down = random_matrix(stream(seed, kLatentStreams, kDown), p.latent, p.hidden);
  out.up = random_matrix(stream(seed, kLatentStreams, kUp), p.hidden, p.latent);
  out.norm = random_vector(stream(seed, kLatentStreams, kGate), p.latent, 0.1f, 1.0f);
  out.norm_eps = 1e-5f;
  return out;
}

}  // namespace

checkpoint::LayerWeights make_synthetic(const Problem& problem, std::uint64_t seed) {
  problem.check();
  checkpoint::LayerWeights w;
  w.block = "synthetic";
  w.problem = problem;
  w.problem.format = "none";
  w.layout = {.element = formats::Element::kBf16};
  w.router = make_router(problem, seed);
  w.expert = [problem, seed](std::int64_t e) {
    return make_expert(problem, problem.inter, seed, e);
  };
  if (problem.latent > 0) w.latent = make_latent(problem, seed);
  if (problem.shared_inter == 0) return w;
  checkpoint::SharedExpert shared;
  Problem full = problem;
  full.latent = 0;  // the shared expert reads the hidden states themselves
  shared.weights = make_expert(full, problem.shared_inter, seed, kSharedExpert);
  shared.format = "none";
  shared.activation = problem.activation;
  if (problem.shared_gate)
    shared.gate = random_vector(stream(seed, 0, kSharedGate), problem.hidden,
                                1 / std::sqrt(float(problem.hidden)));
  w.shared = std::move(shared);
  return w;
}

}  // namespace switchyard::layer
