// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/device_call.h"

#include "switchyard/layer/device_rank.h"

namespace switchyard {
namespace {

std::int64_t experts_of(const Problem& p) { return p.num_experts() + p.routing.zero_experts; }

std::size_t bytes_of(std::int64_t count, std::size_t size) { return std::size_t(count) * size; }

}  // namespace

DeviceCall::DeviceCall(const MoeLayer& layer, std::int64_t tokens,
                       std::span<const std::byte> hidden)
    : layer_(layer),
      tokens_(tokens),
      experts_(experts_of(layer.problem())),
      calls_(tokens <= 64 ? 24 : 4),
      hidden_(hidden.size()),
      logits_(bytes_of(calls_ * tokens * experts_, sizeof(float))),
      token_ids_(bytes_of(calls_ * tokens, sizeof(std::int64_t))),
      ids_(bytes_of(tokens * layer.problem().top_k(), sizeof(std::int32_t))),
      out_(hidden.size()),
      workspace_(layer.workspace_bytes(tokens)) {
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
  f.hidden_stride = f.out_stride = layer_.problem().hidden;
  f.logits = {static_cast<const float*>(logits_.data()) + i * tokens_ * experts_, tokens_, experts_,
              experts_};
  f.token_ids = static_cast<const std::int64_t*>(token_ids_.data()) + i * tokens_;
  f.out = out_.data();
  f.stream = stream_.get();
  f.workspace = {static_cast<std::byte*>(workspace_.data()), workspace_.size()};
  return f;
}

double DeviceCall::forward() {
  if (!forwards_)
    forwards_.emplace(stream_, [&] {
      for (std::int64_t i = 0; i < calls_; ++i) layer_.forward(args(i));
    });
  return forwards_->run() / double(calls_);
}

double DeviceCall::route() {
  if (!routes_)
    routes_.emplace(stream_, [&] {
      for (std::int64_t i = 0; i < calls_; ++i) {
        ForwardArgs f = args(i);
        f.logits = {};
        layer::device_rank_route(layer_.impl(), f);
      }
    });
  return routes_->run() / double(calls_);
}

void DeviceCall::fetch(std::span<std::byte> out, std::span<std::int32_t> ids) {
  out_.upload(out.data());  // what the caller poisoned
  ForwardArgs f = args(0);
  f.ids_out = static_cast<std::int32_t*>(ids_.data());
  layer_.forward(f);
  stream_.wait();
  out_.download(out.data());
  ids_.download(ids.data());
}

}  // namespace switchyard
