// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "switchyard/base/check.h"
#include "switchyard/base/device_stream.h"
#include "switchyard/layer/device_rank.h"

namespace switchyard::layer {
namespace {

/// One array of a call on the device: copied there on construction, and back when asked.
class Mirror {
 public:
  Mirror(const void* host, std::int64_t bytes)
      : host_(host), memory_(host == nullptr ? 0 : std::size_t(bytes)) {
    if (host_ != nullptr) memory_.upload(host_);
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_.data());
  }
  void fetch(void* host) const {
    if (host != nullptr) memory_.download(host);
  }

 private:
  const void* host_;
  DeviceMemory memory_;
};

/// Bytes from the first element of [rows, cols] with a stride to the end of its last.
std::int64_t extent(std::int64_t rows, std::int64_t cols, std::int64_t stride, std::int64_t size) {
  return rows == 0 ? 0 : ((rows - 1) * stride + cols) * size;
}

}  // namespace

void forward_from_host(const Layer& layer, const ForwardArgs& host) {
  require(host.unfinalised == nullptr || host.tokens == 0 ||
              (host.unfinalised->rows != nullptr && host.unfinalised->weights != nullptr &&
               host.unfinalised->index != nullptr),
          "forward: an unfinalised output needs rows, weights and index");
  const Problem& p = layer.problem();
  const std::int64_t t = host.tokens, choices = t * p.top_k();
  const std::int64_t experts = p.num_experts() + p.routing.zero_experts;
  const std::int64_t size = std::int64_t(size_of(layer.options().dtype));
  const Mirror hidden(host.hidden, extent(t, p.hidden, host.hidden_stride, size));
  const Mirror logits(host.logits.data, extent(t, experts, host.logits.stride, 4));
  const Mirror token_ids(host.token_ids, t * 8);
  const Mirror ids(host.routing.ids, choices * 4), weights(host.routing.weights, choices * 4);
  const Mirror factored(host.routing.factored_weights, choices * 4);
  const Mirror out(host.out, extent(t, p.hidden, host.out_stride, size));
  const Mirror ids_out(host.ids_out, choices * 4), weights_out(host.weights_out, choices * 4);
  const Mirror counts(host.expert_counts, experts * 8);
  const Unfinalised none{};
  const Unfinalised& u = host.unfinalised != nullptr ? *host.unfinalised : none;
  const StageCapture wanted = host.capture != nullptr ? *host.capture : StageCapture{};
  const ops::FfnShape& shape = layer.routed().shape;
  const Mirror inter(wanted.inter, t * shape.top_k * shape.inter * 8);
  const Mirror shared_inter(wanted.shared_inter, layer.shared() != nullptr
                                                     ? t * layer.shared()->shape.inter * 8
                                                     : std::int64_t(0));
  const Mirror rows(u.rows, choices * p.hidden * size);
  const Mirror row_weights(u.weights, choices * 4), row_index(u.index, choices * 4);
  const Mirror shared_rows(u.shared, t * p.hidden * size);
  const std::vector<std::byte> poison(layer.workspace_bytes(t), std::byte(0xff));
  const Mirror workspace(poison.data(), std::int64_t(poison.size()));

  const DeviceStream stream;
  Unfinalised device{rows.as<void>(), row_weights.as<float>(), row_index.as<std::int32_t>(),
                     shared_rows.as<void>(), u.pending_factor};
  ForwardArgs a = host;
  a.hidden = hidden.as<void>();
  a.logits.data = logits.as<float>();
  a.token_ids = token_ids.as<std::int64_t>();
  a.routing = {ids.as<std::int32_t>(), weights.as<float>(), factored.as<float>()};
  a.out = out.as<void>();
  a.ids_out = ids_out.as<std::int32_t>();
  a.weights_out = weights_out.as<float>();
  a.expert_counts = counts.as<std::int64_t>();
  if (host.unfinalised != nullptr) a.unfinalised = &device;
  StageCapture capture = wanted;
  capture.inter = inter.as<double>();
  capture.shared_inter = shared_inter.as<double>();
  if (host.capture != nullptr) a.capture = &capture;
  a.stream = stream.get();
  a.workspace = {workspace.as<std::byte>(), poison.size()};
  device_rank_forward(layer, a);  // the judge that called holds the gate
  stream.wait();
  out.fetch(host.out);
  ids_out.fetch(host.ids_out);
  weights_out.fetch(host.weights_out);
  counts.fetch(host.expert_counts);
  inter.fetch(wanted.inter);
  shared_inter.fetch(wanted.shared_inter);
  if (host.unfinalised == nullptr) return;
  rows.fetch(u.rows);
  row_weights.fetch(u.weights);
  row_index.fetch(u.index);
  shared_rows.fetch(u.shared);
  host.unfinalised->pending_factor = device.pending_factor;
}

void experts_from_host(const leaves::Leaf& leaf, const ExpertBank& bank, const ops::FfnArgs& host) {
  const ops::FfnShape& s = bank.shape;
  const std::int64_t t = host.tokens, choices = t * s.top_k;
  double* const inter_out = host.capture != nullptr ? host.capture->inter : nullptr;
  const Mirror x(host.x, extent(t, s.hidden, host.x_stride, std::int64_t(size_of(host.x_dtype))));
  const Mirror ids(host.ids, choices * 4), weights(host.weights, choices * 4);
  const Mirror out(host.out, t * s.hidden * 4), inter(inter_out, choices * s.inter * 8);
  const Mirror rows(host.rows, choices * s.hidden * std::int64_t(size_of(host.rows_dtype)));
  const std::vector<std::byte> poison(leaf.ffn->workspace_bytes(s, bank.layout, t, {}),
                                      std::byte(0xff));
  const Mirror workspace(poison.data(), std::int64_t(poison.size()));

  const DeviceStream stream;
  StageCapture capture{.inter = inter.as<double>()};
  ops::FfnArgs f = host;
  f.shape = &s;
  f.layout = &bank.layout;
  f.packed = static_cast<const std::byte*>(bank.device_packed->data());
  f.fc1_input_scale = bank.scales.fc1;
  f.activation = static_cast<const ActivationParams*>(bank.device_activation->data());
  f.x = x.as<void>();
  f.ids = ids.as<std::int32_t>();
  f.weights = weights.as<float>();
  f.out_dtype = Dtype::kF32;
  f.out = out.as<void>();
  f.out_stride = s.hidden;
  f.rows = rows.as<void>();
  f.capture = inter_out != nullptr ? &capture : nullptr;
  f.stream = stream.get();
  f.workspace = {workspace.as<std::byte>(), poison.size()};
  leaf.ffn->forward(f);
  stream.wait();
  out.fetch(host.out);
  rows.fetch(host.rows);
  inter.fetch(inter_out);
}

void logits_from_host(const Layer& layer, const ForwardArgs& host, float* logits) {
  const Problem& p = layer.problem();
  const std::int64_t size = std::int64_t(size_of(layer.options().dtype)), tokens = host.tokens;
  const Mirror x(host.hidden, extent(tokens, p.hidden, host.hidden_stride, size));
  const Mirror token_ids(host.token_ids, tokens * 8);
  DeviceMemory workspace(layer.workspace_bytes(tokens));
  const DeviceStream stream;
  ForwardArgs a;
  a.tokens = tokens;
  a.hidden = x.as<void>();
  a.hidden_stride = host.hidden_stride;
  a.token_ids = token_ids.as<std::int64_t>();
  a.out = x.as<void>();  // a call has one, and routing writes none
  a.out_stride = a.hidden_stride;
  a.stream = stream.get();
  a.workspace = {static_cast<std::byte*>(workspace.data()), workspace.size()};
  device_rank_route(layer, a);
  stream.wait();
  std::vector<std::byte> all(workspace.size());
  workspace.download(all.data());
  const auto* at =
      reinterpret_cast<const std::byte*>(device_rank_logits(layer, a.workspace, tokens));
  const std::size_t count = std::size_t(tokens * (p.num_experts() + p.routing.zero_experts));
  std::memcpy(logits, all.data() + (at - a.workspace.data()), count * sizeof(float));
}

}  // namespace switchyard::layer
