// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/device_call.h"

#include <algorithm>

#include "switchyard/layer/device_rank.h"

namespace switchyard {
namespace {

std::int64_t experts_of(const Problem& p) { return p.num_experts() + p.routing.zero_experts; }

std::size_t bytes_of(std::int64_t count, std::size_t size) { return std::size_t(count) * size; }

}  // namespace

DeviceCall::DeviceCall(std::span<const MoeLayer> layers, std::int64_t tokens,
                       std::span<const std::byte> hidden)
    : layers_(layers),
      tokens_(tokens),
      experts_(experts_of(layers.front().problem())),
      calls_(std::max<std::int64_t>(tokens <= 64 ? 24 : 4, std::int64_t(layers.size()))),
      hidden_(hidden.size()),
      logits_(bytes_of(calls_ * tokens * experts_, sizeof(float))),
      token_ids_(bytes_of(calls_ * tokens, sizeof(std::int64_t))),
      ids_(bytes_of(tokens * layers.front().problem().top_k(), sizeof(std::int32_t))),
      out_(hidden.size()),
      workspace_(layers.front().workspace_bytes(tokens)) {
  hidden_.upload(hidden.data());
}

void DeviceCall::set(std::int64_t i, const std::vector<float>& logits,
                     const std::vector<std::int64_t>& token_ids) {
  const std::size_t logit_bytes = bytes_of(std::int64_t(logits.size()), sizeof(float));
  const std::size_t id_bytes = bytes_of(tokens_, sizeof(std::int64_t));
  logits_.upload_part(logits.data(), std::size_t(i) * logit_bytes, logit_bytes);
  token_ids_.upload_part(token_ids.data(), std::size_t(i) * id_bytes, id_bytes);
}

ForwardArgs DeviceCall::args(std::int64_t i) {
  ForwardArgs f;
  f.tokens = tokens_;
  f.hidden = hidden_.data();
  f.hidden_stride = f.out_stride = layers_.front().problem().hidden;
  f.logits = {static_cast<const float*>(logits_.data()) + i * tokens_ * experts_, tokens_, experts_,
              experts_};
  f.token_ids = static_cast<const std::int64_t*>(token_ids_.data()) + i * tokens_;
  f.out = out_.data();
  f.stream = stream_.get();
  f.workspace = {static_cast<std::byte*>(workspace_.data()), workspace_.size()};
  return f;
}

void DeviceCall::enqueue(tune::Tape* tape) {
  for (std::int64_t i = 0; i < calls_; ++i) {
    ForwardArgs f = args(i);
    f.tape = tape;
    layer_of(i).forward(f);
  }
}

double DeviceCall::forward() {
  if (!forwards_) forwards_.emplace(stream_, [&] { enqueue(nullptr); });
  return forwards_->run() / double(calls_);
}

double DeviceCall::forward(tune::Tape& tape) {
  const auto [at, _] = replays_.try_emplace(&tape, stream_, [&] { enqueue(&tape); });
  return at->second.run() / double(calls_);
}

double DeviceCall::eager() {
  return eager_us(stream_, [&] { enqueue(nullptr); }) / double(calls_);
}

double DeviceCall::warm() {
  if (!warm_)
    warm_.emplace(stream_, [&] {
      for (std::int64_t i = 0; i < calls_; ++i) layer_of(0).forward(args(0));
    });
  return warm_->run() / double(calls_);
}

double DeviceCall::route() {
  if (!routes_)
    routes_.emplace(stream_, [&] {
      for (std::int64_t i = 0; i < calls_; ++i) {
        ForwardArgs f = args(i);
        f.logits = {};
        layer::device_rank_route(layer_of(i).impl(), f);
      }
    });
  return routes_->run() / double(calls_);
}

void DeviceCall::fetch(std::int64_t i, std::span<std::byte> out, std::span<std::int32_t> ids) {
  out_.upload(out.data());  // what the caller poisoned
  ForwardArgs f = args(i);
  f.ids_out = static_cast<std::int32_t*>(ids_.data());
  layer_of(i).forward(f);
  stream_.wait();
  out_.download(out.data());
  ids_.download(ids.data());
}

}  // namespace switchyard
