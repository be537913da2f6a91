// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/device_rank.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "switchyard/base/arena.h"
#include "switchyard/base/check.h"
#include "switchyard/base/device_pointer.h"
#include "switchyard/layer/run_experts.h"
#include "switchyard/layer/single_rank.h"
#include "switchyard/ops/grouped_ffn/device_stages.h"
#include "switchyard/ops/route/route.h"
#include "switchyard/ops/route/router_gemm.h"
#include "switchyard/ops/route/routing_io.h"

namespace switchyard::layer {
namespace {

/// The parts of a forward's workspace; the last one belongs to whichever expert bank is running.
struct DeviceParts {
  std::span<float> logits;
  std::span<std::int32_t> ids, shared_ids;
  std::span<float> weights, shared_weights, shared_out;
  std::span<std::byte> ffn;
};

std::size_t ffn_bytes(const leaves::Leaf& leaf, const ExpertBank& bank, std::int64_t tokens) {
  return leaf.ffn->workspace_bytes(bank.shape, bank.layout, tokens, {});
}

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

void run_device_shared(const Layer& layer, const ForwardArgs& a, const DeviceParts& parts) {
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

/// The caller's choices or routing's, and the fused shared experts behind them. Returns the factor
/// that finalize still multiplies.
float choose(const Layer& layer, const ForwardArgs& a, const DeviceParts& parts) {
  const Problem& p = layer.problem();
  const CallerRouting& given = a.routing;
  if (given.ids == nullptr) {
    const std::int64_t experts = p.num_experts() + p.routing.zero_experts, k = p.top_k();
    const std::int64_t width = layer.routed().shape.top_k;
    const Span2d<float> own{parts.logits.data(), a.tokens, experts, experts};
    const DeviceTables& tables = layer.tables();
    if (a.logits.data == nullptr)
      ops::router_gemm_cuda({.dtype = layer.options().dtype,
                             .x = a.hidden,
                             .x_stride = a.hidden_stride,
                             .hidden = p.hidden,
                             .weight = data_of<float>(tables.router_weight),
                             .bias = data_of<float>(tables.logit_bias),
                             .norm_eps = p.routing.input_norm_eps,
                             .logits = own},
                            a.stream);
    ops::route_cuda({.logits = a.logits.data != nullptr
                                   ? a.logits
                                   : Span2d<const float>{own.data, own.rows, own.cols, own.stride},
                     .spec = &p.routing,
                     .choice_bias = data_of<float>(tables.choice_bias),
                     .per_expert_scale = data_of<float>(tables.per_expert_scale),
                     .hash_table = data_of<std::int32_t>(tables.hash_table),
                     .vocab = layer.weights().router.vocab,
                     .token_ids = a.token_ids,
                     .ids = {parts.ids.data(), a.tokens, k, width},
                     .weights = {parts.weights.data(), a.tokens, k, width}},
                    a.stream);
  }
  const bool factored = given.factored_weights != nullptr;
  ops::fill_choices_cuda(choices_of(layer, a, parts), given.ids,
                         factored ? given.factored_weights : given.weights, a.stream);
  return factored ? 1 : p.routed_scaling_factor;
}

void run_routed(const Layer& layer, const ForwardArgs& a, const DeviceParts& parts, float factor) {
  ops::FfnArgs f = ffn_args(layer, layer.routed(), a, parts);
  f.ids = parts.ids.data();
  f.weights = parts.weights.data();
  f.factor = factor;
  f.capture = a.capture;
  if (a.unfinalised != nullptr) {
    f.rows = a.unfinalised->rows;
    f.rows_dtype = layer.options().dtype;
  } else {
    f.addend = layer.shared() != nullptr ? parts.shared_out.data() : nullptr;
    f.out = a.out;
    f.out_dtype = layer.options().dtype;
    f.out_stride = a.out_stride;
  }
  run_experts({kExpertsCall, layer.options().leaf, &layer.routed().tactics, a.tape,
               a.trace != nullptr ? &a.trace->experts : nullptr},
              f);
}

/// What the caller asked to see, and the rest of an unfinalised output.
void report(const Layer& layer, const ForwardArgs& a, const DeviceParts& parts, float factor) {
  ops::RoutingReport r{
      .ids = a.ids_out,
      .weights = a.weights_out,
      .counts = a.expert_counts,
      .weight_on_input = layer.problem().routing.placement == WeightPlacement::kInput};
  if (a.unfinalised != nullptr) {
    r.row_weights = a.unfinalised->weights;
    r.row_index = a.unfinalised->index;
    a.unfinalised->pending_factor = factor;
  }
  ops::report_routing_cuda(choices_of(layer, a, parts), r, a.stream);
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
      {"unfinalised rows", a.unfinalised != nullptr ? a.unfinalised->rows : nullptr}};
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
  choose(layer, a, take_device_parts(arena, layer, a.tokens));
}

void device_rank_forward(const Layer& layer, const ForwardArgs& a) {
  check_one_rank_forward(layer, a);
  require(a.stream.handle != nullptr,
          "forward: a layer on cuda runs on its caller's stream, and this call has none; pass one");
  require(a.capture == nullptr || (a.capture->gate == nullptr && a.capture->up == nullptr),
          "forward: a stage capture of FC1's own output exists on the cpu only");
  require(layer.shared() == nullptr || a.unfinalised == nullptr,
          "forward: an unfinalised output beside a shared expert is not built on cuda yet");
  write_trace(layer, a);
  if (a.tokens == 0) return;
  check_places(layer, a);
  if (a.tape != nullptr) a.tape->start();
  Arena arena(a.workspace);
  const DeviceParts parts = take_device_parts(arena, layer, a.tokens);
  const float factor = choose(layer, a, parts);
  if (layer.shared() != nullptr) run_device_shared(layer, a, parts);
  run_routed(layer, a, parts, factor);
  report(layer, a, parts, factor);
}

}  // namespace switchyard::layer
