// SPDX-License-Identifier: Apache-2.0
// Each field of FfnArgs, RouteArgs and RouterGemmArgs, set to what no other field of the call
// implies, against the oracles.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <map>

#include "switchyard/layer/bank.h"
#include "switchyard/ops/grouped_ffn/tile_ffn.h"
#include "switchyard/ops/quantize/quantize.h"
#include "switchyard/ops/route/route.h"
#include "switchyard/ops/route/router_gemm.h"
#include "tests/cases/leaf_case.h"
#include "tests/support/route_case.h"
#include "tests/support/usage_error.h"

namespace switchyard::ops {
namespace {

using test::Call;
using test::GivenRouting;
using test::rel;

constexpr std::int64_t kTokens = 7;

// The routed experts of a small layer with biases, called without the layer around them.
class Ffn {
 public:
  explicit Ffn(const char* format)
      : layer(test::build_layer(weights_of(format), in_fp32(), test::runnable_tiers().back())),
        bank(layer.impl().routed()),
        call(layer.impl(), kTokens),
        routing(layer.problem(), kTokens),
        fc1_input_scale(bank.scales.fc1),
        out(call.exact.size(), std::nanf("")) {
    routing.ids[5] = -1;
  }
  static BuildOptions in_fp32() {
    BuildOptions o;
    o.dtype = Dtype::kF32;
    return o;
  }
  static checkpoint::LayerWeights weights_of(const char* format) {
    const leaves::Leaf& leaf = *leaves::find_leaf(format, Device::kCpu).leaf;
    Problem p = test::small_problem(leaf);
    p.expert_bias = true;
    p.activation = Swiglu{.clamp = PerExpert({0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f})};
    return test::make_weights(p, leaf);
  }
  FfnArgs args() {
    return {.shape = &bank.shape,
            .layout = &bank.layout,
            .packed = bank.packed.data(),
            .fc1_input_scale = fc1_input_scale,
            .activation = bank.activation.data(),
            .tokens = kTokens,
            .x_dtype = layer.problem().dtype,
            .x = call.hidden.data(),
            .x_stride = bank.shape.hidden,
            .ids = routing.ids.data(),
            .weights = routing.weights.data(),
            .out_dtype = Dtype::kF32,
            .out = out.data(),
            .out_stride = bank.shape.hidden,
            .pool = layer.impl().options().pool.get(),
            .isa = layer.impl().options().isa,
            .workspace = call.workspace.bytes()};
  }
  FfnRefArgs ref_args() {
    return {.shape = &bank.shape,
            .expert = &layer.impl().weights().expert,
            .fc1_input_scale = fc1_input_scale,
            .fc2_input_scale = bank.scales.fc2.data(),
            .activation = bank.activation.data(),
            .tokens = kTokens,
            .x = call.exact.data(),
            .ids = routing.ids.data(),
            .weights = routing.weights.data()};
  }
  std::vector<double> run(const std::function<void(FfnArgs&)>& change = nullptr) {
    std::ranges::fill(out, std::nanf(""));
    std::ranges::fill(call.workspace.bytes(), std::byte(0xff));
    FfnArgs a = args();
    if (change) change(a);
    grouped_ffn_cpu(a);
    return {out.begin(), out.end()};
  }
  std::vector<double> ref(const std::function<void(FfnRefArgs&)>& change = nullptr) {
    std::vector<double> y(out.size());
    FfnRefArgs a = ref_args();
    a.out = y.data();
    if (change) change(a);
    grouped_ffn_ref(a);
    return y;
  }
  std::int64_t hidden() const { return bank.shape.hidden; }

  MoeLayer layer;
  const layer::ExpertBank& bank;
  Call call;
  GivenRouting routing;
  float fc1_input_scale;
  std::vector<float> out;
};

constexpr double kBudget = 1e-5;  // nothing but the quantisers rounds

// Both twins with the field as it is meant, and the twin without it: far away.
void expect_changes(Ffn& f, const std::function<void(FfnArgs&)>& twin,
                    const std::function<void(FfnRefArgs&)>& oracle) {
  const std::vector<double> plain = f.run();
  EXPECT_LE(rel(f.run(twin), f.ref(oracle)), kBudget);
  EXPECT_GT(rel(plain, f.ref(oracle)), 100 * kBudget) << "the field shows";
}

void shape() {
  Ffn f("none");
  FfnShape on_input = f.bank.shape;
  on_input.weight_on_input = true;
  HostBuffer more(ffn_workspace_bytes(on_input, f.bank.layout, kTokens, {2}));
  expect_changes(
      f, [&](FfnArgs& a) { a.shape = &on_input, a.workspace = more.bytes(); },
      [&](FfnRefArgs& a) { a.shape = &on_input; });
}

// Packed experts from the third on: their first is expert 2. A layout is only ever its shape's.
void packed_and_layout() {
  Ffn f("none");
  const std::vector<ActivationParams> same(6, f.bank.activation[0]);
  const ExpertLayout layout = f.bank.layout;
  const std::vector<std::int32_t> only(f.routing.ids.size(), 2), first(only.size(), 0);
  EXPECT_LE(rel(f.run([&](FfnArgs& a) {
              a.packed += 2 * layout.bytes, a.layout = &layout;
              a.ids = first.data(), a.activation = same.data();
            }),
                f.ref([&](FfnRefArgs& a) { a.ids = only.data(), a.activation = same.data(); })),
            kBudget);
  EXPECT_GT(rel(f.ref([&](FfnRefArgs& a) { a.ids = first.data(), a.activation = same.data(); }),
                f.ref([&](FfnRefArgs& a) { a.ids = only.data(), a.activation = same.data(); })),
            100 * kBudget);
}

void fc1_input_scale() {
  Ffn f("w4a8_mxfp4_fp8");
  const float wide = 3.7f * f.fc1_input_scale;
  EXPECT_LE(rel(f.run([&](FfnArgs& a) { a.fc1_input_scale = wide; }),
                f.ref([&](FfnRefArgs& a) { a.fc1_input_scale = wide; })),
            2e-3);
  EXPECT_GT(rel(f.run(), f.ref([&](FfnRefArgs& a) { a.fc1_input_scale = wide; })), 4e-3);
}

void activation() {
  Ffn f("none");
  const std::vector<ActivationParams> reversed(f.bank.activation.rbegin(),
                                               f.bank.activation.rend());
  expect_changes(
      f, [&](FfnArgs& a) { a.activation = reversed.data(); },
      [&](FfnRefArgs& a) { a.activation = reversed.data(); });
}

void tokens() {
  Ffn f("none");
  const std::vector<double> all = f.run(), three = f.run([](FfnArgs&a) { a.tokens = 3; });
  for (std::size_t i = 0; i < all.size(); ++i)
    ASSERT_EQ(std::isnan(three[i]), std::int64_t(i) >= 3 * f.hidden()) << i;
  EXPECT_TRUE(std::equal(all.begin(), all.begin() + 3 * f.hidden(), three.begin()));
  EXPECT_NO_THROW(f.run([](FfnArgs& a) { a.tokens = 0; }));
}

void x_and_its_dtype() {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16, Dtype::kF32}) {
    Ffn f("fp8_block_scales");
    Call other(f.layer.impl(), kTokens, 5);
    std::vector<std::byte> x(other.exact.size() * size_of(dtype));
    for (std::size_t i = 0; i < other.exact.size(); ++i) {
      store_element(dtype, x.data(), std::int64_t(i), other.exact[i]);
      other.exact[i] = load_element(dtype, x.data(), std::int64_t(i));
    }
    EXPECT_LE(rel(f.run([&](FfnArgs& a) { a.x = x.data(), a.x_dtype = dtype; }),
                  f.ref([&](FfnRefArgs& a) { a.x = other.exact.data(); })),
              2e-3)
        << to_string(dtype);
    EXPECT_GT(rel(f.run(), f.ref([&](FfnRefArgs& a) { a.x = other.exact.data(); })), 0.1);
  }
}

void x_stride() {
  Ffn f("none");
  const std::int64_t h = f.hidden(), stride = h + 5;
  std::vector<float> x(std::size_t(kTokens * stride), std::nanf(""));
  for (std::int64_t i = 0; i < kTokens * h; ++i)
    x[std::size_t(i / h * stride + i % h)] = f.call.exact[std::size_t(i)];
  const std::vector<double> dense = f.run();
  EXPECT_EQ(f.run([&](FfnArgs& a) { a.x = x.data(), a.x_stride = stride; }), dense);
  EXPECT_LE(rel(dense, f.ref()), kBudget);
}

// Rows in any place, and rows that their sender has quantised: the bits of x, and not of other
// rows.
void x_rows() {
  for (const char* format :
       {"none", "fp8_block_scales", "w4a8_mxfp4_mxfp8", "w4a8_mxfp4_fp8", "nvfp4", "fp8"}) {
    Ffn f(format);
    const std::vector<double> want = f.run();
    const std::int64_t h = f.hidden();
    std::vector<const std::byte*> rows, scales, turned;
    for (std::int64_t t = 0; t < kTokens; ++t)
      rows.push_back(f.call.hidden.data() + t * h * std::int64_t(size_of(Dtype::kF32)));
    turned.assign(rows.rbegin(), rows.rend());
    auto apart = [](FfnArgs& a) { a.x = nullptr, a.x_stride = 0; };
    EXPECT_EQ(f.run([&](FfnArgs& a) { apart(a), a.x_rows = {.rows = rows.data()}; }), want);
    EXPECT_NE(f.run([&](FfnArgs& a) { apart(a), a.x_rows = {.rows = turned.data()}; }), want);
    EXPECT_EQ(quantises_ahead(f.bank.shape), std::string_view(format) != "none") << format;
    if (!quantises_ahead(f.bank.shape)) {
      EXPECT_THAT(test::usage_error_of([&] {
                    f.run([&](FfnArgs& a) { a.x_rows = {rows.data(), nullptr, true}; });
                  }),
                  testing::HasSubstr("quantised already"));
      continue;
    }
    const formats::ActivationQuant kind = f.bank.shape.quant;
    const std::int64_t code = activation_code_bytes(kind, h),
                       scale = activation_scale_bytes(kind, h);
    std::vector<std::uint8_t> codes(std::size_t(kTokens * code)),
        of(std::size_t(kTokens * scale) + 1);
    quantize_rows_to_codes(
        {kind, f.call.exact.data(), kTokens, h, f.fc1_input_scale, codes.data(), of.data()});
    for (std::int64_t t = 0; t < kTokens; ++t) {
      rows[std::size_t(t)] = reinterpret_cast<const std::byte*>(codes.data() + t * code);
      scales.push_back(reinterpret_cast<const std::byte*>(of.data() + t * scale));
    }
    auto ahead = [&](FfnArgs& a) { apart(a), a.x_rows = {rows.data(), scales.data(), true}; };
    EXPECT_EQ(f.run(ahead), want) << format;
    codes[0] ^= 0x11;
    EXPECT_NE(f.run(ahead), want) << format << ": the codes are read";
  }
}

void ids() {
  Ffn f("none");
  std::vector<std::int32_t> other = f.routing.ids;
  for (std::int32_t& id : other) id = id < 0 ? id : 5 - id;
  expect_changes(
      f, [&](FfnArgs& a) { a.ids = other.data(); }, [&](FfnRefArgs& a) { a.ids = other.data(); });
}

void weights() {
  Ffn f("none");
  const std::vector<float> other(f.routing.weights.rbegin(), f.routing.weights.rend());
  expect_changes(
      f, [&](FfnArgs& a) { a.weights = other.data(); },
      [&](FfnRefArgs& a) { a.weights = other.data(); });
}

// Unscaled choices join behind the factor.
void factor() {
  Ffn f("none");
  expect_changes(
      f, [](FfnArgs& a) { a.factor = 2.5f; }, [](FfnRefArgs& a) { a.factor = 2.5f; });
  FfnShape last_unscaled = f.bank.shape;
  last_unscaled.unscaled_choices = 1;
  auto both = [&](auto& a) { a.factor = 2.5f, a.shape = &last_unscaled; };
  EXPECT_LE(rel(f.run(both), f.ref(both)), kBudget);
  EXPECT_GT(rel(f.run(both), f.ref([](FfnRefArgs& a) { a.factor = 2.5f; })), 100 * kBudget);
}

void addend() {
  Ffn f("none");
  std::vector<float> row;
  for (std::size_t i = 0; i < f.out.size(); ++i) row.push_back(float(i % 13) / 4 - 1);
  const std::vector<double> exact(row.begin(), row.end());
  expect_changes(
      f, [&](FfnArgs& a) { a.addend = row.data(), a.factor = 3; },
      [&](FfnRefArgs& a) { a.addend = exact.data(), a.factor = 3; });
}

void out_and_its_dtype() {
  Ffn f("none");
  const std::vector<double> want = f.run();
  for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16}) {
    std::vector<std::byte> rounded(want.size() * 2, std::byte(0xff));
    f.run([&](FfnArgs& a) { a.out = rounded.data(), a.out_dtype = dtype; });
    for (std::size_t i = 0; i < want.size(); ++i) {
      std::uint16_t got;
      std::memcpy(&got, &rounded[2 * i], 2);
      const float v = float(want[i]);
      ASSERT_EQ(got, dtype == Dtype::kBf16 ? float_to_bf16(v) : float_to_fp16(v))
          << to_string(dtype) << " " << i;
    }
    EXPECT_THAT(f.out, testing::Each(testing::IsNan())) << "the other output stays";
  }
}

void out_stride() {
  Ffn f("none");
  const std::vector<double> dense = f.run();
  const std::int64_t h = f.hidden(), stride = h + 3;
  std::vector<float> wide(std::size_t(kTokens * stride), -777);
  f.run([&](FfnArgs& a) { a.out = wide.data(), a.out_stride = stride; });
  for (std::int64_t i = 0; i < kTokens * stride; ++i)
    ASSERT_EQ(wide[std::size_t(i)],
              i % stride < h ? dense[std::size_t(i / stride * h + i % stride)] : -777);
}

void rows_and_their_dtype() {
  Ffn f("none");
  std::vector<double> want(std::size_t(kTokens * 3 * f.hidden()));
  f.ref([&](FfnRefArgs& a) { a.out = nullptr, a.rows = want.data(); });
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kFp16}) {
    std::vector<std::byte> rows(want.size() * size_of(dtype), std::byte(0x5a));
    f.run([&](FfnArgs& a) { a.out = nullptr, a.rows = rows.data(), a.rows_dtype = dtype; });
    std::vector<double> got(want.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      got[i] = load_element(dtype, rows.data(), std::int64_t(i));
    const auto skipped = got.begin() + 5 * f.hidden();
    std::vector<std::byte> poison(size_of(dtype), std::byte(0x5a));
    EXPECT_THAT(std::vector(skipped, skipped + f.hidden()),
                testing::Each(double(load_element(dtype, poison.data(), 0))))
        << "a skipped row is left alone";
    std::fill_n(skipped, f.hidden(), 0.0);
    EXPECT_LE(rel(got, want), dtype == Dtype::kF32 ? kBudget : 3e-3) << to_string(dtype);
  }
}

void capture() {
  Ffn f("none");
  std::vector<double> got(std::size_t(kTokens * 3 * f.bank.shape.inter), 0), want(got);
  StageCapture stages{got.data()};
  f.run([&](FfnArgs& a) { a.capture = &stages; });
  f.ref([&](FfnRefArgs& a) { a.inter_out = want.data(); });
  EXPECT_LE(rel(got, want), kBudget);
}

void pool_and_isa() {
  Ffn f("none");
  ThreadPool five(5);
  HostBuffer more(ffn_workspace_bytes(f.bank.shape, f.bank.layout, kTokens, {5}));
  const std::vector<double> two = f.run();
  EXPECT_EQ(f.run([&](FfnArgs& a) { a.pool = &five, a.workspace = more.bytes(); }), two);
  for (CpuIsa isa : test::runnable_tiers())
    EXPECT_LE(rel(f.run([&](FfnArgs& a) { a.isa = isa; }), f.ref()), kBudget) << to_string(isa);
}

void tactic() {
  Ffn f("none");
  const std::vector<double> plan = f.run();
  const Tactic other = PanelTactic{2, 1, 1, 4}, tiles = TileTactic{}, wide = PanelTactic{17};
  EXPECT_EQ(f.run([&](FfnArgs& a) { a.tactic = &other; }), plan);
  EXPECT_THAT(test::usage_error_of([&] { f.run([&](FfnArgs& a) { a.tactic = &tiles; }); }),
              testing::HasSubstr("GPU's tiles"));
  EXPECT_THAT(test::usage_error_of([&] { f.run([&](FfnArgs& a) { a.tactic = &wide; }); }),
              testing::HasSubstr("fc1_panels"));
}

void workspace() {
  Ffn f("none");
  const std::size_t need = ffn_workspace_bytes(f.bank.shape, f.bank.layout, kTokens, {2});
  EXPECT_THAT(test::usage_error_of(
                  [&] { f.run([&](FfnArgs& a) { a.workspace = a.workspace.first(need - 1); }); }),
              testing::HasSubstr("workspace_bytes()"));
  EXPECT_LE(rel(f.run([&](FfnArgs& a) { a.workspace = a.workspace.first(need); }), f.ref()),
            kBudget);
}

// Only the CUDA twin routes, and only into what its experts read.
void route() {
  Ffn f("none");
  const RouteArgs args;
  EXPECT_THAT(test::usage_error_of([&] { f.run([&](FfnArgs& a) { a.route = &args; }); }),
              testing::HasSubstr("route in front"));
  FfnArgs bad = f.args();
  int handle = 0;
  bad.stream = {&handle}, bad.route = &args, bad.x_dtype = Dtype::kBf16;
  FfnShape shape = f.bank.shape;
  shape.dtype = Dtype::kBf16;
  bad.shape = &shape;
  EXPECT_THAT(test::usage_error_of([&] { grouped_ffn_cuda(bad); }),
              testing::HasSubstr("ids and weights that its experts read"));
}

// A stream belongs to the CUDA twin: there it is required, here it changes nothing.
void stream() {
  Ffn f("none");
  const std::vector<double> without = f.run();
  int handle = 0;
  EXPECT_EQ(f.run([&](FfnArgs& a) { a.stream = {&handle}; }), without);
  FfnArgs bad = f.args();
  EXPECT_THAT(test::usage_error_of([&] { grouped_ffn_cuda(bad); }), testing::HasSubstr("stream"));
}

TEST(FfnArgs, EachFieldReachesTheKernels) {
  [[maybe_unused]] auto [f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17,
                         f18, f19, f20, f21, f22, f23, f24, f25, f26] = FfnArgs{};
  // Fields that mean nothing without each other share a case.
  const std::map<std::string, void (*)()> fields = {{"shape", shape},
                                                    {"layout", packed_and_layout},
                                                    {"packed", packed_and_layout},
                                                    {"fc1_input_scale", fc1_input_scale},
                                                    {"activation", activation},
                                                    {"tokens", tokens},
                                                    {"x_dtype", x_and_its_dtype},
                                                    {"x", x_and_its_dtype},
                                                    {"x_stride", x_stride},
                                                    {"x_rows", x_rows},
                                                    {"ids", ids},
                                                    {"weights", weights},
                                                    {"route", route},
                                                    {"factor", factor},
                                                    {"addend", addend},
                                                    {"out_dtype", out_and_its_dtype},
                                                    {"out", out_and_its_dtype},
                                                    {"out_stride", out_stride},
                                                    {"rows_dtype", rows_and_their_dtype},
                                                    {"rows", rows_and_their_dtype},
                                                    {"capture", capture},
                                                    {"tactic", tactic},
                                                    {"pool", pool_and_isa},
                                                    {"isa", pool_and_isa},
                                                    {"stream", stream},
                                                    {"workspace", workspace}};
  EXPECT_EQ(fields.size(), 26u) << "a field that joins the struct needs a case";
  for (const auto& [field, run] : fields) {
    SCOPED_TRACE(field);
    run();
  }
}

// ---- routing ----

using test::RouteCase;

RouteCase scored(bool hashed) {
  RoutingSpec spec =
      make_routing(hashed ? RoutingMethodType::kHash : RoutingMethodType::kMiniMax2, 16, 4);
  spec.per_expert_scale = true;
  return RouteCase(spec, 6);
}

struct RouteField {
  std::function<void(RouteCase&)> change;
  bool hashed = false;
};

TEST(RouteArgs, EachFieldReachesTheChoice) {
  [[maybe_unused]] auto [f1, f2, f3, f4, f5, f6, f7, f8, f9] = RouteArgs{};
  const std::map<std::string, RouteField> fields = {
      {"logits", {[](RouteCase& c) {
         c.set_row(2, {0, 1, 2, 3, 4, 5, 6, 7});
       }}},
      {"spec", {[](RouteCase& c) { c.spec.epsilon = 3; }}},
      {"choice_bias", {[](RouteCase& c) { c.bias[7] = 5; }}},
      {"per_expert_scale", {[](RouteCase& c) {
         for (float& s : c.scale) s += 3;
       }}},
      {"hash_table", {[](RouteCase& c) { std::ranges::reverse(c.table); }, true}},
      {"token_ids", {[](RouteCase& c) { std::ranges::reverse(c.tokens); }, true}},
      {"vocab", {nullptr, true}},
      {"ids", {nullptr}},
      {"weights", {nullptr}},
  };
  EXPECT_EQ(fields.size(), 9u) << "a field that joins the struct needs a case";
  for (const auto& [field, row] : fields) {
    if (!row.change) continue;  // below
    SCOPED_TRACE(field);
    RouteCase c = scored(row.hashed);
    const test::Routed before = c.run_cpu();
    row.change(c);
    const test::Routed got = c.run_cpu(), want = c.run_ref();
    EXPECT_EQ(got.ids, want.ids);
    for (std::size_t i = 0; i < want.weights.size(); ++i)
      EXPECT_NEAR(got.weights[i], want.weights[i], 4e-6 * std::fabs(want.weights[i]));
    EXPECT_TRUE(got.ids != before.ids || got.weights != before.weights);
  }
}

// ---- router logits ----

/// Operands of a router GEMM in fp32; rows of x and of logits are padded.
struct RouterCase {
  static constexpr std::int64_t kRows = 3, kExperts = 5, kHidden = 37, kStride = 41;
  RouterCase() : x(kRows * kStride, std::nanf("")), weight(kExperts * kHidden), bias(kExperts) {
    for (std::size_t i = 0; i < x.size(); ++i)
      if (std::int64_t(i) % kStride < kHidden) x[i] = value(i, 29);
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = value(i, 23);
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = value(i, 7);
  }
  static float value(std::size_t i, std::size_t period) {
    return float(i * 5 % period) / 8 - float(period) / 16;
  }
  RouterGemmArgs args(std::vector<float>& logits) const {
    logits.assign(kRows * (kExperts + 2), -1);
    return {.dtype = Dtype::kF32,
            .x = x.data(),
            .x_stride = kStride,
            .hidden = kHidden,
            .weight = weight.data(),
            .bias = bias.data(),
            .norm_eps = 0.5f,
            .logits = {logits.data(), kRows, kExperts, kExperts + 2}};
  }
  std::vector<float> x, weight, bias;
};

using RouterChange = std::function<void(RouterGemmArgs&)>;

std::vector<double> logits_of(const RouterCase& c, bool twin, const RouterChange& change) {
  std::vector<float> logits;
  RouterGemmArgs a = c.args(logits);
  change(a);
  ThreadPool pool(2);
  if (twin) router_gemm_cpu(a, pool);
  if (!twin) router_gemm_ref(a);
  return {logits.begin(), logits.end()};
}

TEST(RouterGemmArgs, EachFieldReachesTheLogits) {
  [[maybe_unused]] auto [f1, f2, f3, f4, f5, f6, f7, f8, f9] = RouterGemmArgs{};
  // isa is the ninth: it changes no bit, which router_gemm_test holds.
  const RouterCase c;
  std::vector<std::uint16_t> halves;
  for (float v : c.x) halves.push_back(float_to_bf16(v / 3));
  const std::vector<float> other_weight(c.weight.rbegin(), c.weight.rend());
  const std::map<std::string, RouterChange> fields = {
      {"dtype, x", [&](RouterGemmArgs& a) { a.dtype = Dtype::kBf16, a.x = halves.data(); }},
      {"x_stride", [](RouterGemmArgs& a) { a.x_stride *= 2, a.logits.rows = 2; }},
      {"hidden", [](RouterGemmArgs& a) { a.hidden = 20; }},
      {"weight", [&](RouterGemmArgs& a) { a.weight = other_weight.data(); }},
      {"bias", [](RouterGemmArgs& a) { a.bias = nullptr; }},
      {"norm_eps", [](RouterGemmArgs& a) { a.norm_eps = 4; }},
      {"no norm", [](RouterGemmArgs& a) { a.norm_eps = 0; }},
      {"logits", [](RouterGemmArgs& a) { a.logits.cols = 3; }}};
  const std::vector<double> plain = logits_of(c, true, [](RouterGemmArgs&) {});
  EXPECT_LE(rel(plain, logits_of(c, false, [](RouterGemmArgs&) {})), 1e-6);
  for (const auto& [field, change] : fields) {
    SCOPED_TRACE(field);
    const std::vector<double> want = logits_of(c, false, change);
    EXPECT_LE(rel(logits_of(c, true, change), want), 1e-6);
    EXPECT_GT(rel(plain, want), 1e-4) << "the field shows";
  }
}

TEST(RouteArgs, VocabBoundsTheTokenIds) {
  RouteCase c = scored(true);
  c.run_cpu();
  RouteArgs args = c.args();
  args.vocab = c.tokens[0];
  EXPECT_THAT(test::usage_error_of([&] { args.check(); }),
              testing::HasSubstr(std::to_string(c.tokens[0])));
}

// The rows of a fused layer are wider than k: the outputs have strides, and keep what lies between.
TEST(RouteArgs, OutputsMayBeStrided) {
  RouteCase c = scored(false);
  const test::Routed dense = c.run_cpu();
  for (bool oracle : {false, true}) {
    std::vector<std::int32_t> ids(6 * 7, -77);
    std::vector<float> weights(6 * 5, -77);
    RouteArgs args = c.args();
    args.ids = {ids.data(), 6, 4, 7};
    args.weights = {weights.data(), 6, 4, 5};
    args.check();
    if (oracle) route_ref(args);
    if (!oracle) route_cpu(args, 0, 6);
    for (std::size_t t = 0; t < 6; ++t)
      for (std::size_t j = 0; j < 7; ++j) {
        EXPECT_EQ(ids[t * 7 + j], j < 4 ? dense.ids[t * 4 + j] : -77);
        if (j < 5) {
          EXPECT_NEAR(weights[t * 5 + j], j < 4 ? dense.weights[t * 4 + j] : -77, 1e-5);
        }
      }
  }
}

}  // namespace
}  // namespace switchyard::ops
