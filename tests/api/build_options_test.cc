// SPDX-License-Identifier: Apache-2.0
// Each field of BuildOptions and of LayerArrays, set to something else than its default, against
// the oracle or against the same layer built another way.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "switchyard/api/layer_builder.h"
#include "switchyard/base/check.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/resolve/probe.h"
#include "tests/cases/leaf_case.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using test::Call;
using test::rel;
using test::usage_error_of;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

const leaves::Leaf& leaf_of(const char* format) {
  return *leaves::find_leaf(format, Device::kCpu).leaf;
}

// A gated shared expert, a factor, and experts stored as `format`.
checkpoint::LayerWeights weights_of(const char* format) {
  Problem p = test::small_problem(leaf_of(format));
  p.num_shared = 1, p.shared_inter = 64, p.shared_gate = true;
  return test::make_weights(p, leaf_of(format));
}

template <class F>
BuildOptions with(F&& change) {
  BuildOptions o;
  change(o);
  return o;
}

MoeLayer build(BuildOptions o, const char* format = "none") {
  if (o.threads == 0) o.threads = 2;
  return LayerBuilder::build(weights_of(format), o);
}

std::vector<double> output(const MoeLayer& layer, std::uint64_t seed = 1) {
  Call call(layer.impl(), 9, seed);
  call.run();
  return call.values();
}

Json report(const MoeLayer& layer) { return Json::parse(layer.report_json()); }

// Right by the oracle of the layer as built, and another result than the defaults give.
void expect_right_and_changed(const MoeLayer& layer) {
  EXPECT_TRUE(test::judge(layer, 9).ok(test::budgets_of(layer)));
  EXPECT_GT(rel(output(layer), output(build({}))), 1e-3);
}

std::string refusal(const BuildOptions& o) {
  try {
    build(o);
  } catch (const CannotServe& e) {
    return e.what();
  }
  ADD_FAILURE() << "a layer was built";
  return "";
}

void format() {
  const MoeLayer layer = build(with([&](BuildOptions& o) { o.format = "NVFP4_AWQ"; }));
  EXPECT_EQ(layer.leaf(), "switchyard.cpu.fused_moe.nvfp4");
  expect_right_and_changed(layer);
}

void activations() {
  const MoeLayer own = build({}, "nvfp4"),
                 plain = build(with([&](BuildOptions&o) { o.activations = ActivationMode::kBf16; }),
                               "nvfp4");
  EXPECT_EQ(plain.problem().activations, ActivationMode::kBf16);
  EXPECT_TRUE(test::judge(plain, 9).ok(test::budgets_of(plain)));
  EXPECT_GT(rel(output(plain), output(own)), 0.01);
}

void dtype() {
  const MoeLayer layer = build(with([&](BuildOptions& o) { o.dtype = Dtype::kF32; }));
  EXPECT_EQ(layer.problem().dtype, Dtype::kF32);
  EXPECT_LE(test::judge(layer, 9).rel_l2_oracle, 1e-5) << "bf16 would round the output";
}

void device() {
  const BuildOptions cuda = with([&](BuildOptions& o) { o.device = Device::kCuda; });
  if (resolve::environment().num_gpus > 0) {
    EXPECT_EQ(build(cuda).leaf(), "switchyard.cuda.fused_moe.none");
  } else {
    EXPECT_THROW(build(cuda), DeviceError);
  }
}

void leaf() {
  EXPECT_THAT(refusal(with([&](BuildOptions& o) { o.leaf = "cpu.nvfp4"; })),
              HasSubstr("quant_unsupported"));
  EXPECT_EQ(report(build(with([&](BuildOptions& o) { o.leaf = "none.cpu"; })))["selected_by"],
            "pinned");
}

void prefer() {
  EXPECT_THAT(usage_error_of([] { build(with([&](BuildOptions& o) { o.prefer = "TRTLM"; })); }),
              HasSubstr("TRTLM"));
  const Json r = report(build(with([&](BuildOptions& o) { o.prefer = "cuda"; })));
  EXPECT_EQ(r["degraded"], resolve::environment().num_gpus == 0)
      << "a preference may degrade, loudly";
  EXPECT_EQ(r["requested"]["prefer"], "cuda");
}

void threads() {
  EXPECT_EQ(build(with([&](BuildOptions& o) { o.threads = 3; })).threads(), 3);
}

// Layers of one pool run on its threads.
void pool() {
  const auto shared = std::make_shared<ThreadPool>(3);
  const auto given = [&](BuildOptions& o) { o.pool = shared; };
  const MoeLayer one = LayerBuilder::build(weights_of("none"), with(given));
  const MoeLayer two = LayerBuilder::build(weights_of("none"), with(given));
  EXPECT_EQ(one.impl().options().pool, shared);
  EXPECT_EQ(two.impl().options().pool, shared);
  EXPECT_EQ(two.threads(), 3);
  EXPECT_EQ(output(two), output(build({})));
  EXPECT_THAT(usage_error_of(
                  [&] { build(with([&](BuildOptions& o) { o.pool = shared, o.threads = 2; })); }),
              HasSubstr("threads = 2 and a pool of 3 threads"));
}

void ep() {
  EXPECT_THAT(refusal(with([&](BuildOptions& o) { o.ep = 2; })), HasSubstr("ep 2 x tp 1"));
}

void tp() {
  EXPECT_THAT(refusal(with([&](BuildOptions& o) { o.tp = 3; })), HasSubstr("ep 1 x tp 3"));
}

void parallel() {
  EXPECT_EQ(report(build(with(
                [&](BuildOptions& o) { o.parallel = Parallel::kDtp; })))["deployment"]["parallel"],
            "dtp");
}

void slots() {
  EXPECT_THAT(refusal(with([&](BuildOptions& o) { o.slots = 5; })), HasSubstr("eplb_unsupported"));
  EXPECT_THAT(refusal(with([&](BuildOptions& o) { o.slots = 7; })),
              HasSubstr("eplb_unsupported: slots = 7 for 6 experts"));
  EXPECT_EQ(report(build(with([&](BuildOptions& o) { o.slots = 6; })))["deployment"]["slots"], 6);
}

void combine() {
  const MoeLayer layer = build(with([&](BuildOptions& o) { o.combine = CombinePrecision::kFp8; }));
  EXPECT_EQ(layer.problem().combine, CombinePrecision::kFp8);
  EXPECT_EQ(report(layer)["problem"]["combine"], "fp8");
  EXPECT_THAT(layer.notices(), Contains(HasSubstr("combine = fp8 has no effect: one rank")));
  EXPECT_THAT(build({}).notices(), Not(Contains(HasSubstr("combine"))));
  // The switch asks for every layer what the option asks for one.
  Environment env = resolve::environment();
  for (auto& [name, value] : env.flags)
    if (name == "SWITCHYARD_COMBINE_PRECISION") value = "nvfp4";
  const resolve::ScopedEnvironment switched(env);
  EXPECT_THAT(build({}).notices(), Contains(HasSubstr("combine = nvfp4 has no effect")));
}

void comm() {
  for (const char* name : {"nccl", "allgather", "fused"})
    EXPECT_THAT(refusal(with([&](BuildOptions& o) { o.comm = name; })),
                HasSubstr("cannot serve: ranks = 1, an exchange joins two or more"))
        << name;
  EXPECT_THAT(usage_error_of([] { build(with([&](BuildOptions& o) { o.comm = "onesided"; })); }),
              HasSubstr("one_sided"));
  EXPECT_THAT(output(build(with([&](BuildOptions& o) { o.comm = "auto"; }))), output(build({})));
}

void fuse_shared() {
  Problem p = test::small_problem(leaf_of("none"));
  p.num_shared = 1, p.shared_inter = p.inter;
  const MoeLayer layer =
      LayerBuilder::build(test::make_weights(p, leaf_of("none")), with([&](BuildOptions& o) {
                            o.threads = 2;
                            o.fuse_shared = true;
                          }));
  EXPECT_EQ(layer.impl().routed().shape.unscaled_choices, 1);
  EXPECT_TRUE(test::judge(layer, 9).ok(test::budgets_of(layer)));
}

void with_shared() {
  const MoeLayer layer = build(with([&](BuildOptions& o) { o.with_shared = false; }));
  EXPECT_EQ(layer.problem().num_shared, 0);
  EXPECT_EQ(layer.impl().shared(), nullptr);
  expect_right_and_changed(layer);
}

void with_parallel_mlp() {
  const BuildOptions asked = with([&](BuildOptions& o) {
    o.threads = 2;
    o.with_parallel_mlp = true;
  });
  EXPECT_THAT(usage_error_of([&] { build(asked); }), HasSubstr("no MLP beside"));
  checkpoint::LayerWeights unread = weights_of("none");
  unread.notices = {cat(checkpoint::kUnreadMlp, "tensor 'x' is missing")};
  EXPECT_THAT(usage_error_of([&] { LayerBuilder::build(unread, asked); }),
              HasSubstr("tensor 'x' is missing"));
  // What a shared expert would add: the same weights in either place give the same bits.
  checkpoint::LayerWeights shared = weights_of("none"), beside = weights_of("none");
  beside.parallel_mlp = std::move(beside.shared);
  beside.shared.reset();
  beside.problem.num_shared = 0, beside.problem.shared_inter = 0;
  beside.problem.shared_gate = false;
  const MoeLayer joined = LayerBuilder::build(beside, asked),
                 alone = LayerBuilder::build(beside, with([&](BuildOptions&o) { o.threads = 2; })),
                 own = LayerBuilder::build(shared, with([&](BuildOptions&o) { o.threads = 2; }));
  EXPECT_EQ(joined.problem().shared_inter, 64);
  EXPECT_EQ(output(joined), output(own));
  EXPECT_TRUE(test::judge(joined, 9).ok(test::budgets_of(joined)));
  EXPECT_GT(rel(output(alone), output(joined)), 1e-3);
  beside.shared = shared.shared;
  EXPECT_THAT(usage_error_of([&] { LayerBuilder::build(beside, asked); }),
              HasSubstr("a shared expert of its own"));
}

void top_k() {
  const MoeLayer layer = build(with([&](BuildOptions& o) { o.top_k = 2; }));
  EXPECT_EQ(layer.problem().top_k(), 2);
  expect_right_and_changed(layer);
}

void routed_scaling_factor() {
  const MoeLayer layer = build(with([&](BuildOptions& o) { o.routed_scaling_factor = 0.5f; }));
  EXPECT_EQ(layer.problem().routed_scaling_factor, 0.5f);
  expect_right_and_changed(layer);
}

// That its choices reach the kernels is tests/tune's; here, that the file is read.
void tuning() {
  EXPECT_THAT(usage_error_of([] { build(with([](BuildOptions& o) { o.tuning = "none.json"; })); }),
              HasSubstr("none.json"));
}

// The static scales are those of the given tokens, fc2's one per expert: a scale that followed
// other tokens, or other experts, shows.
void calibration() {
  const float loud = 37;
  std::vector<float> tokens(256 * 160, 0.01f);
  tokens[160 * 3 + 5] = -loud;
  const BuildOptions given = with([&](BuildOptions& o) {
    o.format = "w4a8_mxfp4_fp8";
    o.with_shared = false;
    o.calibration = tokens;
  });
  const MoeLayer layer = build(given), seeded = build(with([&](BuildOptions&o) {
                                         o.format = "w4a8_mxfp4_fp8";
                                         o.with_shared = false;
                                       }));
  const layer::StaticScales& scales = layer.impl().routed().scales;
  EXPECT_FLOAT_EQ(scales.fc1, loud * 1.05f / 448);
  EXPECT_LT(seeded.impl().routed().scales.fc1, 6 * 1.05f / 448);
  EXPECT_THAT(layer.notices(), testing::Contains(HasSubstr("256 of them given")));
  const layer::StaticScales& own = seeded.impl().routed().scales;
  EXPECT_EQ(std::set(own.fc2.begin(), own.fc2.end()).size(), 6u) << "one per expert";
  EXPECT_THAT(usage_error_of([] {
                build(with([&](BuildOptions& o) {
                  o.format = "w4a8_mxfp4_fp8";
                  o.with_shared = false;
                  o.calibration = {1, 2};
                }));
              }),
              HasSubstr("no multiple of H"));
}

void seed() {
  auto tiny = [](std::uint64_t s) {
    return MoeLayer::from_preset("tiny", with([&](BuildOptions& o) {
                                   o.threads = 2;
                                   o.seed = s;
                                 }));
  };
  const MoeLayer layer = tiny(9);
  EXPECT_TRUE(test::judge(layer, 9).ok(test::budgets_of(layer)));
  EXPECT_EQ(output(layer), output(tiny(9)));
  EXPECT_GT(rel(output(layer), output(tiny(1))), 0.1);
}

void progress() {
  std::vector<std::int64_t> done;
  build(with([&](BuildOptions& o) {
    o.progress = [&](std::int64_t n, std::int64_t of) {
      done.push_back(n);
      EXPECT_EQ(of, 6);
    };
  }));
  EXPECT_EQ(done, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}));
}

const std::map<std::string, void (*)()> kFields = {
    {"format", format},
    {"activations", activations},
    {"dtype", dtype},
    {"device", device},
    {"leaf", leaf},
    {"prefer", prefer},
    {"threads", threads},
    {"pool", pool},
    {"ep", ep},
    {"tp", tp},
    {"parallel", parallel},
    {"slots", slots},
    {"combine", combine},
    {"comm", comm},
    {"fuse_shared", fuse_shared},
    {"with_shared", with_shared},
    {"with_parallel_mlp", with_parallel_mlp},
    {"top_k", top_k},
    {"routed_scaling_factor", routed_scaling_factor},
    {"calibration", calibration},
    {"tuning", tuning},
    {"seed", seed},
    {"progress", progress},
};

// What is asked for and changes nothing says so; what changes something is silent about it.
TEST(BuildOptions, WhatHasNoEffectIsANotice) {
  checkpoint::LayerWeights plain = weights_of("none");
  plain.shared.reset();
  plain.problem.num_shared = 0, plain.problem.shared_inter = 0, plain.problem.shared_gate = false;
  const BuildOptions useless = with([](BuildOptions& o) {
    o.threads = 2;
    o.with_shared = false;
    o.calibration.assign(160, 0.5f);
  });
  EXPECT_THAT(LayerBuilder::build(plain, useless).notices(),
              testing::ElementsAre(HasSubstr("the layer has none"),
                                   HasSubstr("calibration tokens are not used: the activations of "
                                             "format bf16 have no static scales")));
  // Tokens that only stand by are no request.
  EXPECT_THAT(LayerBuilder::build(weights_of("none"), {}, useless.calibration).notices(),
              testing::IsEmpty());
  EXPECT_THAT(build(with([](BuildOptions& o) { o.with_shared = false; })).notices(),
              testing::IsEmpty());
}

// The experts carry the block's output bias: what scales their weights would scale it.
TEST(BuildOptions, AnOutputBiasIsNeverScaled) {
  checkpoint::LayerWeights w = weights_of("none");
  w.notices = {std::string(checkpoint::kOutputBias)};
  EXPECT_THAT(usage_error_of([&] {
                LayerBuilder::build(w, with([&](BuildOptions& o) { o.routed_scaling_factor = 2; }));
              }),
              HasSubstr("output bias"));
  const MoeLayer layer = LayerBuilder::build(w, with([&](BuildOptions& o) { o.threads = 2; }));
  Call call(layer.impl(), 9);
  const std::vector<std::int32_t> ids(std::size_t(9 * layer.problem().top_k()), -1);
  const std::vector<float> weights(ids.size(), 0.5f);
  auto route = [&](ForwardArgs& a) {
    a.routing.ids = ids.data();
    a.routing.weights = weights.data();
  };
  EXPECT_THAT(usage_error_of([&] { call.run(route); }), HasSubstr("output bias"));
  EXPECT_EQ(output(layer), output(build({})));
}

TEST(BuildOptions, EachFieldHasACase) {
  // A structured binding compiles only with the exact number of members: a field that joins the
  // struct stops here until it has a case above.
  [[maybe_unused]] auto [f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17,
                         f18, f19, f20, f21, f22, f23] = BuildOptions{};
  EXPECT_EQ(kFields.size(), 23u);
}

TEST(BuildOptions, EachFieldReachesTheLayer) {
  for (const auto& [field, run] : kFields) {
    SCOPED_TRACE(field);
    run();
  }
}

// Copies of materialised experts stand beside the packed ones: one, and one more per 16 experts.
TEST(BuildOptions, ThreadsDoNotMultiplyTheExpertsInFlight) {
  for (std::int64_t experts : {6, 32}) {
    Problem p = test::small_problem(leaf_of("none"));
    p.routing = make_routing(RoutingMethodType::kRenormalize, experts, 3);
    checkpoint::LayerWeights w = test::make_weights(p, leaf_of("none"));
    std::atomic<int> now{0}, most{0};
    w.expert = [&, source = w.expert](std::int64_t e) {
      const int in_flight = ++now;
      for (int seen = most; in_flight > seen && !most.compare_exchange_weak(seen, in_flight);) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      checkpoint::ExpertWeights expert = source(e);
      --now;
      return expert;
    };
    LayerBuilder::build(std::move(w), with([&](BuildOptions& o) { o.threads = 8; }));
    EXPECT_LE(most, std::max<std::int64_t>(1, experts / 16)) << experts << " experts";
  }
}

// ---- arrays ----

// Every array that a layer may have, biases and choice bias included, or a hash table; latent
// projections when asked for.
checkpoint::LayerWeights every_array(bool hashed, bool latent) {
  Problem p = test::small_problem(leaf_of("none"));
  p.expert_bias = true;
  p.latent = latent ? 64 : 0;
  p.routing = make_routing(hashed ? RoutingMethodType::kHash : RoutingMethodType::kMiniMax2, 6, 3);
  p.routing.per_expert_scale = true;
  return test::make_weights(p, leaf_of("none"));
}

struct Arrays {
  explicit Arrays(const checkpoint::LayerWeights& w) : router(w.router) {
    for (std::int64_t e = 0; e < w.problem.num_experts(); ++e) {
      const checkpoint::ExpertWeights x = w.expert(e);
      append(gate, x.gate->codes), append(up, x.up.codes), append(down, x.down.codes);
      append(gate_bias, x.gate_bias), append(up_bias, x.up_bias), append(down_bias, x.down_bias);
    }
    auto given = [](const auto& v) { return v.empty() ? nullptr : v.data(); };
    arrays = {.problem = w.problem,
              .dtype = Dtype::kBf16,
              .gate = gate.data(),
              .up = up.data(),
              .down = down.data(),
              .gate_bias = gate_bias.data(),
              .up_bias = up_bias.data(),
              .down_bias = down_bias.data(),
              .router_weight = router.weight.data(),
              .router_bias = given(router.logit_bias),
              .choice_bias = given(router.choice_bias),
              .per_expert_scale = given(router.per_expert_scale),
              .hash_table = given(router.hash_table),
              .vocab = router.vocab};
    if (!w.latent) return;
    append(latent_down, w.latent->down.codes), append(latent_up, w.latent->up.codes);
    latent_norm = w.latent->norm;
    arrays.latent_down = latent_down.data(), arrays.latent_up = latent_up.data();
    arrays.latent_norm = latent_norm.data(), arrays.latent_norm_eps = w.latent->norm_eps;
  }
  template <class To, class From>
  static void append(To& to, const From& from) {
    to.insert(to.end(), from.begin(), from.end());
  }
  /// What the arrays say, for the way in that does not borrow them.
  checkpoint::LayerWeights weights() const {
    checkpoint::LayerWeights w;
    w.problem = arrays.problem;
    w.layout.element =
        arrays.dtype == Dtype::kFp16 ? formats::Element::kFp16 : formats::Element::kBf16;
    w.router = router;
    w.router.vocab = arrays.vocab;
    w.expert = [*this, layout = w.layout](std::int64_t e) {
      const std::int64_t h = arrays.problem.expert_hidden(), i = arrays.problem.inter;
      checkpoint::ExpertWeights x;
      x.gate = matrix(gate, layout, e, i, h);
      x.up = matrix(up, layout, e, i, h);
      x.down = matrix(down, layout, e, h, i);
      x.gate_bias = row(gate_bias, e, i), x.up_bias = row(up_bias, e, i);
      x.down_bias = row(down_bias, e, h);
      return x;
    };
    const std::int64_t h = arrays.problem.hidden, l = arrays.problem.latent;
    if (l > 0)
      w.latent = {.down = matrix(latent_down, w.layout, 0, l, h),
                  .up = matrix(latent_up, w.layout, 0, h, l),
                  .norm = latent_norm,
                  .norm_eps = arrays.latent_norm_eps};
    return w;
  }
  static formats::Matrix matrix(const std::vector<std::byte>& all,
                                const formats::WeightLayout& layout, std::int64_t e,
                                std::int64_t rows, std::int64_t cols) {
    formats::Matrix m;
    m.layout = layout, m.rows = rows, m.cols = cols;
    const std::ptrdiff_t bytes = rows * cols * 2;
    auto copy = std::make_shared<std::vector<std::byte>>(all.begin() + e * bytes,
                                                         all.begin() + (e + 1) * bytes);
    m.codes = *copy;
    m.storage = std::move(copy);
    return m;
  }
  static std::vector<float> row(const std::vector<float>& all, std::int64_t e, std::int64_t size) {
    return {all.begin() + e * size, all.begin() + (e + 1) * size};
  }
  checkpoint::RouterWeights router;
  std::vector<std::byte> gate, up, down, latent_down, latent_up;
  std::vector<float> latent_norm, gate_bias, up_bias, down_bias;
  LayerArrays arrays;
};

TEST(LayerArrays, EachFieldReachesTheLayer) {
  [[maybe_unused]] auto [f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17,
                         f18] = LayerArrays{};
  using Change = std::function<void(Arrays&)>;
  const BuildOptions options = with([&](BuildOptions& o) {
    o.dtype = Dtype::kF32;
    o.threads = 2;
  });
  auto scaled = [](std::vector<float>& v) {
    for (std::size_t i = 0; i < v.size(); ++i) v[i] *= 1 + float(i % 7);
  };
  auto swapped = [](std::vector<std::byte>& v) {
    std::swap_ranges(v.begin(), v.begin() + std::ptrdiff_t(v.size() / 2),
                     v.begin() + std::ptrdiff_t(v.size() / 2));
  };
  // Behind each field, what another value of it looks like; two need the hash table.
  const std::map<std::string, Change> fields = {
      {"problem", [](Arrays& a) { a.arrays.problem.routed_scaling_factor = 3; }},
      {"dtype", [](Arrays& a) { a.arrays.dtype = Dtype::kFp16; }},
      {"gate", [&](Arrays& a) { swapped(a.gate); }},
      {"up", [&](Arrays& a) { swapped(a.up); }},
      {"down", [&](Arrays& a) { swapped(a.down); }},
      {"gate_bias", [&](Arrays& a) { scaled(a.gate_bias); }},
      {"up_bias", [&](Arrays& a) { scaled(a.up_bias); }},
      {"down_bias", [&](Arrays& a) { scaled(a.down_bias); }},
      {"router_weight", [&](Arrays& a) { scaled(a.router.weight); }},
      {"router_bias", [&](Arrays& a) { scaled(a.router.logit_bias); }},
      {"choice_bias", [](Arrays& a) { a.router.choice_bias[2] = 9; }},
      {"per_expert_scale", [&](Arrays& a) { scaled(a.router.per_expert_scale); }},
      {"hash_table", [](Arrays& a) { std::ranges::reverse(a.router.hash_table); }},
      {"vocab", [](Arrays& a) { a.arrays.vocab = 5; }},
      {"latent_down", [&](Arrays& a) { swapped(a.latent_down); }},
      {"latent_up", [&](Arrays& a) { swapped(a.latent_up); }},
      {"latent_norm", [&](Arrays& a) { scaled(a.latent_norm); }},
      {"latent_norm_eps", [](Arrays& a) { a.arrays.latent_norm_eps = 0.5f; }},
  };
  EXPECT_EQ(fields.size(), 18u) << "a field that joins the struct needs a case";
  for (const auto& [field, change] : fields) {
    SCOPED_TRACE(field);
    const checkpoint::LayerWeights w =
        every_array(field == "hash_table" || field == "vocab", field.starts_with("latent"));
    Arrays given(w);
    const MoeLayer plain = MoeLayer::from_arrays(given.arrays, options);
    const MoeLayer stored = LayerBuilder::build(w, options);
    Call a(stored.impl(), 9), b(plain.impl(), 9);
    EXPECT_EQ(b.run(), a.run()) << "the same weights by another way in";
    change(given);
    const MoeLayer other = MoeLayer::from_arrays(given.arrays, options);
    Call c(other.impl(), 9);
    c.token_ids = b.token_ids;
    if (field == "vocab") {
      c.token_ids.assign(9, 6);
      EXPECT_THAT(usage_error_of([&] { c.run(); }), HasSubstr("6"));
      continue;
    }
    c.run();
    EXPECT_GT(rel(c.values(), b.values()), 1e-4);
    const MoeLayer same = LayerBuilder::build(given.weights(), options);
    EXPECT_TRUE(test::judge(same, 9).ok(test::budgets_of(same)));
    Call d(same.impl(), 9);
    EXPECT_EQ(c.out, d.run());
  }
}

// fp32 arrays are rounded to bf16, with a notice; fp16 ones keep their values.
TEST(LayerArrays, OtherDtypes) {
  const checkpoint::LayerWeights w = every_array(false, false);
  Arrays bf16(w), f32(w), fp16(w);
  auto widen = [](std::vector<std::byte>& v, Dtype to) {
    std::vector<std::byte> out(v.size() / 2 * size_of(to));
    for (std::int64_t i = 0; i < std::int64_t(v.size()) / 2; ++i)
      store_element(to, out.data(), i, load_element(Dtype::kBf16, v.data(), i));
    v = out;
  };
  for (auto [arrays, to] : {std::pair{&f32, Dtype::kF32}, {&fp16, Dtype::kFp16}}) {
    for (std::vector<std::byte>* v : {&arrays->gate, &arrays->up, &arrays->down}) widen(*v, to);
    arrays->arrays.dtype = to;
    arrays->arrays.gate = arrays->gate.data();
    arrays->arrays.up = arrays->up.data(), arrays->arrays.down = arrays->down.data();
  }
  const BuildOptions options = with([&](BuildOptions& o) {
    o.dtype = Dtype::kF32;
    o.threads = 2;
  });
  const MoeLayer one = MoeLayer::from_arrays(bf16.arrays, options),
                 two = MoeLayer::from_arrays(f32.arrays, options),
                 three = MoeLayer::from_arrays(fp16.arrays, options);
  EXPECT_EQ(output(two), output(one));
  EXPECT_THAT(two.notices(), testing::Contains(HasSubstr("F32 weights rounded")));
  EXPECT_LE(rel(output(three), output(one)), 1e-4) << "bf16 values fit fp16, but for subnormals";
}

}  // namespace
}  // namespace switchyard
