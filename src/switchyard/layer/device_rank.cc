// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/device_rank.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "switchyard/base/arena.h"
#include "switchyard/base/check.h"
#include "switchyard/base/device_pointer.h"
#include "switchyard/layer/run_experts.h"
#include "switchyard/layer/single_rank.h"
#include "switchyard/ops/grouped_ffn/device_stages.h"
#include "switchyard/ops/grouped_ffn/routing_launch.h"
#include "switchyard/ops/route/route.h"
#include "switchyard/ops/route/router_gemm.h"
#include "switchyard/ops/route/routing_io.h"

namespace switchyard::layer {
namespace {

std::size_t ffn_bytes(const leaves::Leaf& leaf, const ExpertBank& bank, std::int64_t tokens) {
  return leaf.ffn->workspace_bytes(bank.shape, bank.layout, tokens, {});
}

}  // namespace

DeviceParts take_device_parts(Arena& arena, const Layer& layer, std::int64_t tokens) {
  const Problem& p = layer.problem();
  const std::size_t t = std::size_t(tokens), width = std::size_t(layer.routed().shape.top_k);
  DeviceParts parts;
  parts.logits = arena.take<float>(t * std::size_t(p.num_experts() + p.routing.zero_experts));
  parts.ids = arena.take<std::int32_t>(t * width);
  parts.weights = arena.take<float>(t * width);
  std::size_t ffn = ffn_bytes(*layer.options().leaf, layer.routed(), tokens);
  if (const ExpertBank* shared = layer.shared()) {
    parts.shared_ids = arena.take<std::int32_t>(t);
    parts.shared_weights = arena.take<float>(t);
    parts.shared_out = arena.take<float>(t * std::size_t(p.hidden));
    ffn = std::max(ffn, ffn_bytes(*layer.options().shared_leaf, *shared, tokens));
  }
  parts.ffn = arena.take<std::byte>(ffn);
  return parts;
}

namespace {

template <class T>
std::shared_ptr<DeviceMemory> upload(const std::vector<T>& host) {
  if (host.empty()) return nullptr;
  auto memory = std::make_shared<DeviceMemory>(host.size() * sizeof(T));
  memory->upload(host.data());
  return memory;
}

template <class T>
const T* data_of(const std::shared_ptr<DeviceMemory>& memory) {
  return memory == nullptr ? nullptr : static_cast<const T*>(memory->data());
}

ops::FfnArgs ffn_args(const Layer& layer, const ExpertBank& bank, const ForwardArgs& a,
                      const DeviceParts& parts) {
  ops::FfnArgs f;
  f.shape = &bank.shape;
  f.layout = &bank.layout;
  f.packed = data_of<std::byte>(bank.device_packed);
  f.fc1_input_scale = bank.scales.fc1;
  f.activation = data_of<ActivationParams>(bank.device_activation);
  f.tokens = a.tokens;
  f.x_dtype = layer.options().dtype;
  f.x = a.hidden;
  f.x_stride = a.hidden_stride;
  f.stream = a.stream;
  f.workspace = parts.ffn;
  return f;
}

}  // namespace

void run_shared_on_device(const Layer& layer, const ForwardArgs& a, const DeviceParts& parts) {
  const std::int64_t hidden = layer.problem().hidden;
  ops::shared_gate_cuda({.x = static_cast<const std::uint16_t*>(a.hidden),
                         .dtype = layer.options().dtype,
                         .x_stride = a.hidden_stride,
                         .tokens = a.tokens,
                         .hidden = hidden,
                         .gate = data_of<float>(layer.tables().shared_gate),
                         .ids = parts.shared_ids.data(),
                         .weights = parts.shared_weights.data()},
                        a.stream);
  ops::FfnArgs f = ffn_args(layer, *layer.shared(), a, parts);
  f.ids = parts.shared_ids.data();
  f.weights = parts.shared_weights.data();
  f.out_dtype = Dtype::kF32;
  f.out = parts.shared_out.data();
  f.out_stride = hidden;
  StageCapture capture;
  if (a.capture != nullptr) capture.inter = a.capture->shared_inter;
  if (capture.inter != nullptr) f.capture = &capture;
  run_experts({kSharedCall, layer.options().shared_leaf, &layer.shared()->tactics, a.tape,
               a.trace != nullptr ? &a.trace->shared : nullptr},
              f);
}

namespace {

ops::DeviceChoices choices_of(const Layer& layer, const ForwardArgs& a, const DeviceParts& parts) {
  const Problem& p = layer.problem();
  return {.tokens = a.tokens,
          .top_k = p.top_k(),
          .width = layer.routed().shape.top_k,
          .experts = p.num_experts(),
          .zero_experts = p.routing.zero_experts,
          .ids = parts.ids.data(),
          .weights = parts.weights.data()};
}

/// The caller's logits, or what the router makes of the input.
Span2d<const float> logits_of(const Layer& layer, const ForwardArgs& a, const DeviceParts& parts) {
  if (a.logits.data != nullptr) return a.logits;
  const Problem& p = layer.problem();
  const DeviceTables& tables = layer.tables();
  const std::int64_t experts = p.num_experts() + p.routing.zero_experts;
  ops::router_gemm_cuda({.dtype = layer.options().dtype,
                         .x = a.hidden,
                         .x_stride = a.hidden_stride,
                         .hidden = p.hidden,
                         .weight = data_of<float>(tables.router_weight),
                         .bias = data_of<float>(tables.logit_bias),
                         .norm_eps = p.routing.input_norm_eps,
                         .logits = {parts.logits.data(), a.tokens, experts, experts}},
                        a.stream);
  return {parts.logits.data(), a.tokens, experts, experts};
}

/// What routes the call, for one that routes: its logits are enqueued.
std::optional<ops::RouteArgs> routing_of(const Layer& layer, const ForwardArgs& a,
                                         const DeviceParts& parts) {
  if (a.routing.ids != nullptr) return std::nullopt;
  const Problem& p = layer.problem();
  const DeviceTables& tables = layer.tables();
  const std::int64_t k = p.top_k(), width = layer.routed().shape.top_k;
  return ops::RouteArgs{.logits = logits_of(layer, a, parts),
                        .spec = &p.routing,
                        .choice_bias = data_of<float>(tables.choice_bias),
                        .per_expert_scale = data_of<float>(tables.per_expert_scale),
                        .hash_table = data_of<std::int32_t>(tables.hash_table),
                        .vocab = layer.weights().router.vocab,
                        .token_ids = a.token_ids,
                        .ids = {parts.ids.data(), a.tokens, k, width},
                        .weights = {parts.weights.data(), a.tokens, k, width}};
}

/// Whether the experts' call can route for itself: nothing is written behind its choices.
bool experts_route(const Layer& layer) {
  return layer.routed().shape.top_k == layer.problem().top_k();
}

/// The caller's choices or those of `route`, and the fused shared experts behind them.
void choose(const Layer& layer, const ForwardArgs& a, const DeviceParts& parts,
            const std::optional<ops::RouteArgs>& route) {
  if (route) ops::route_cuda(*route, a.stream);
  const CallerRouting& given = a.routing;
  ops::fill_choices_cuda(choices_of(layer, a, parts), given.ids,
                         given.factored_weights != nullptr ? given.factored_weights : given.weights,
                         a.stream);
}

}  // namespace

float pending_factor(const Layer& layer, const ForwardArgs& a) {
  return a.routing.factored_weights != nullptr ? 1 : layer.problem().routed_scaling_factor;
}

void choose_on_device(const Layer& layer, const ForwardArgs& a, const DeviceParts& parts) {
  choose(layer, a, parts, routing_of(layer, a, parts));
}

ops::FfnArgs routed_on_device(const Layer& layer, const ForwardArgs& a, const DeviceParts& parts) {
  ops::FfnArgs f = ffn_args(layer, layer.routed(), a, parts);
  f.ids = parts.ids.data();
  f.weights = parts.weights.data();
  f.capture = a.capture;
  return f;
}

void run_routed_on_device(const Layer& layer, const ForwardArgs& a, ops::FfnArgs& f) {
  run_experts({kExpertsCall, layer.options().leaf, &layer.routed().tactics, a.tape,
               a.trace != nullptr ? &a.trace->experts : nullptr},
              f);
}

void report_on_device(const Layer& layer, const ForwardArgs& a, const DeviceParts& parts) {
  ops::RoutingReport r{
      .ids = a.ids_out,
      .weights = a.weights_out,
      .counts = a.expert_counts,
      .weight_on_input = layer.problem().routing.placement == WeightPlacement::kInput};
  if (a.unfinalised != nullptr) {
    r.row_weights = a.unfinalised->weights;
    r.row_index = a.unfinalised->index;
    a.unfinalised->pending_factor = pending_factor(layer, a);
  }
  ops::report_routing_cuda(choices_of(layer, a, parts), r, a.stream);
}

namespace {

/// The experts' rows and sums, and of an unfinalised output the shared expert's rounded rows too;
/// `route`: what the experts' call does first, or null.
void run_routed(const Layer& layer, const ForwardArgs& a, const DeviceParts& parts,
                const ops::RouteArgs* route) {
  const Dtype dtype = layer.options().dtype;
  ops::FfnArgs f = routed_on_device(layer, a, parts);
  f.route = route;
  f.factor = pending_factor(layer, a);
  const bool shared = layer.shared() != nullptr;
  if (a.unfinalised != nullptr) {
    f.rows = a.unfinalised->rows;
    f.rows_dtype = dtype;
    if (shared)
      ops::round_rows_cuda({.rows = parts.shared_out.data(),
                            .count = a.tokens * layer.problem().hidden,
                            .dtype = dtype,
                            .out = a.unfinalised->shared},
                           a.stream);
  } else {
    f.addend = shared ? parts.shared_out.data() : nullptr;
    f.out = a.out;
    f.out_dtype = dtype;
    f.out_stride = a.out_stride;
  }
  run_routed_on_device(layer, a, f);
}

/// A kernel that reads a host's array would end the whole context, so it is asked before.
void check_places(const Layer& layer, const ForwardArgs& a) {
  check_gpu(layer, "forward");
  const std::pair<std::string_view, const void*> arrays[] = {
      {"hidden", a.hidden},
      {"logits", a.logits.data},
      {"token_ids", a.token_ids},
      {"routing ids", a.routing.ids},
      {"routing weights", a.routing.weights},
      {"factored routing weights", a.routing.factored_weights},
      {"out", a.out},
      {"ids_out", a.ids_out},
      {"weights_out", a.weights_out},
      {"expert_counts", a.expert_counts},
      {"workspace", a.workspace.data()},
      {"unfinalised rows", a.unfinalised != nullptr ? a.unfinalised->rows : nullptr},
      {"unfinalised weights", a.unfinalised != nullptr ? a.unfinalised->weights : nullptr},
      {"unfinalised index", a.unfinalised != nullptr ? a.unfinalised->index : nullptr},
      {"unfinalised shared", a.unfinalised != nullptr ? a.unfinalised->shared : nullptr}};
  for (const auto& [name, p] : arrays)
    require(
        p == nullptr || device_can_read(p), "forward: ", name,
        " is no memory of the current GPU; a layer on cuda reads and writes device memory, copy "
        "the array there");
}

}  // namespace

void check_gpu(const Layer& layer, std::string_view call) {
  require(device_can_read(layer.routed().device_packed->data()), call,
          ": the layer's weights lie on another GPU than the current one; select that one");
}

void check_device_call(const Layer& layer, const ForwardArgs& a) {
  require(a.stream.handle != nullptr,
          "forward: a layer on cuda runs on its caller's stream, and this call has none; pass one");
  require(a.capture == nullptr || (a.capture->gate == nullptr && a.capture->up == nullptr),
          "forward: a stage capture of FC1's own output exists on the cpu only");
  if (a.tokens > 0) check_places(layer, a);
}

bool on_cuda(const Layer& layer) { return layer.options().leaf->device == Device::kCuda; }

DeviceTables upload_tables(const checkpoint::LayerWeights& w) {
  DeviceTables t;
  t.router_weight = upload(w.router.weight);
  t.logit_bias = upload(w.router.logit_bias);
  t.choice_bias = upload(w.router.choice_bias);
  t.per_expert_scale = upload(w.router.per_expert_scale);
  t.hash_table = upload(w.router.hash_table);
  if (w.shared) t.shared_gate = upload(w.shared->gate);
  return t;
}

RoutingLaunchReport routing_launch(const Layer& layer, std::int64_t tokens) {
  using Launch = ops::RoutingLaunch;
  const LayerOptions& o = layer.options();
  ops::RoutingCall call{.spec = &layer.problem().routing,
                        .tokens = tokens,
                        .choices = layer.routed().shape.top_k,
                        .dtype = o.dtype};
  if (on_cuda(layer))
    for (const CallTactic& t : tactics_of(layer, tokens))
      if (t.call == kExpertsCall)
        call.asked = TileRouting(std::get<TileTactic>(t.use.tactic).routing);
  const Launch answer = on_cuda(layer) ? ops::routing_launch(call) : Launch::kOnCpu;
  return ops::report(answer, call);
}

std::size_t device_rank_workspace(const Layer& layer, std::int64_t max_tokens) {
  check_forward_tokens(layer, max_tokens);
  Arena arena;
  take_device_parts(arena, layer, max_tokens);
  return arena.used();
}

const float* device_rank_logits(const Layer& layer, std::span<std::byte> workspace,
                                std::int64_t tokens) {
  Arena arena(workspace);
  return take_device_parts(arena, layer, tokens).logits.data();
}

void device_rank_route(const Layer& layer, const ForwardArgs& a) {
  check_one_rank_forward(layer, a);
  if (a.tokens == 0) return;
  Arena arena(a.workspace);
  choose_on_device(layer, a, take_device_parts(arena, layer, a.tokens));
}

void device_rank_forward(const Layer& layer, const ForwardArgs& a) {
  check_one_rank_forward(layer, a);
  check_device_call(layer, a);
  write_trace(layer, a);
  if (a.tokens == 0) return;
  if (a.tape != nullptr) a.tape->start();
  Arena arena(a.workspace);
  const DeviceParts parts = take_device_parts(arena, layer, a.tokens);
  const std::optional<ops::RouteArgs> route = routing_of(layer, a, parts);
  const bool later = route && experts_route(layer);
  if (!later) choose(layer, a, parts, route);
  if (layer.shared() != nullptr) run_shared_on_device(layer, a, parts);
  run_routed(layer, a, parts, later ? &*route : nullptr);
  report_on_device(layer, a, parts);
}

}  // namespace switchyard::layer
