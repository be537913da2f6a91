// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/device_routing.h"

#include "switchyard/base/check.h"

namespace switchyard {

template <class T>
T* DeviceRouting::room(std::int64_t count) {
  memory_.push_back(std::make_unique<DeviceMemory>(std::size_t(count) * sizeof(T)));
  return static_cast<T*>(memory_.back()->data());
}

template <class T>
T* DeviceRouting::upload(const T* host, std::int64_t count) {
  if (host == nullptr) return nullptr;
  T* device = room<T>(count);
  memory_.back()->upload(host);
  return device;
}

DeviceRouting::DeviceRouting(std::span<const ops::RouterGemmArgs> batches) {
  ensure(!batches.empty(), "a device's routing without batches");
  std::vector<ops::RouterGemmArgs> calls(batches.begin(), batches.end());
  const ops::RouterGemmArgs& first = batches.front();
  const std::int64_t experts = first.logits.cols;
  const float* weight = upload(first.weight, experts * first.hidden);
  const float* bias = upload(first.bias, experts);
  for (ops::RouterGemmArgs& a : calls) {
    const auto* x = static_cast<const std::byte*>(a.x);
    a.x = upload(x, a.logits.rows * a.x_stride * std::int64_t(size_of(a.dtype)));
    a.weight = weight;
    a.bias = bias;
    a.logits.data = room<float>(a.logits.rows * a.logits.stride);
    logits_.push_back(memory_.back().get());
  }
  graph_ = std::make_unique<DeviceGraph>(stream_, [&] {
    for (int i = 0; i < kCalls; ++i)
      ops::router_gemm_cuda(calls[std::size_t(i) % calls.size()], stream_.get());
  });
}

DeviceRouting::DeviceRouting(std::span<const ops::RouteArgs> batches) {
  ensure(!batches.empty(), "a device's routing without batches");
  std::vector<ops::RouteArgs> calls(batches.begin(), batches.end());
  const ops::RouteArgs& first = batches.front();
  const std::int64_t experts = first.logits.cols, tokens = first.logits.rows;
  const float* bias = upload(first.choice_bias, experts);
  const float* scale = upload(first.per_expert_scale, first.spec->num_experts);
  const std::int32_t* table = upload(first.hash_table, first.vocab * first.spec->top_k);
  const std::int64_t* token_ids = upload(first.token_ids, tokens);
  for (ops::RouteArgs& a : calls) {
    a.logits.data = upload(a.logits.data, tokens * a.logits.stride);
    a.choice_bias = bias;
    a.per_expert_scale = scale;
    a.hash_table = table;
    a.token_ids = token_ids;
    a.ids.data = room<std::int32_t>(tokens * a.ids.stride);
    ids_.push_back(memory_.back().get());
    a.weights.data = room<float>(tokens * a.weights.stride);
    weights_.push_back(memory_.back().get());
  }
  graph_ = std::make_unique<DeviceGraph>(stream_, [&] {
    for (int i = 0; i < kCalls; ++i)
      ops::route_cuda(calls[std::size_t(i) % calls.size()], stream_.get());
  });
}

double DeviceRouting::run() { return graph_->run() / kCalls; }

void DeviceRouting::fetch_logits(std::span<const ops::RouterGemmArgs> batches) const {
  for (std::size_t b = 0; b < batches.size(); ++b) logits_[b]->download(batches[b].logits.data);
}

void DeviceRouting::fetch_choice(const ops::RouteArgs& host) const {
  ids_.front()->download(host.ids.data);
  weights_.front()->download(host.weights.data);
}

}  // namespace switchyard
