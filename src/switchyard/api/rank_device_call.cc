// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/rank_device_call.h"

#include "switchyard/layer/device_rank.h"

namespace switchyard {
namespace {

constexpr std::string_view kPhase = "run on the ranks' GPUs";

std::int64_t experts_of(const Problem& p) { return p.num_experts() + p.routing.zero_experts; }

std::size_t bytes_of(std::int64_t count, std::size_t size) { return std::size_t(count) * size; }

}  // namespace

/// The tensors behind the layer, on the GPU.
struct RankDeviceCall::Behind {
  explicit Behind(const BehindTensors& t)
      : residual(t.residual().size()),
        gamma(t.gamma().size()),
        residual_out(t.residual().size()),
        norm_out(t.residual().size()) {
    residual.upload(t.residual().data());
    gamma.upload(t.gamma().data());
  }
  DeviceMemory residual, gamma, residual_out, norm_out;
  BehindLayer args() const {
    return {.residual_in = residual.data(),
            .rms_gamma = gamma.data(),
            .residual_out = residual_out.data(),
            .norm_out = norm_out.data()};
  }
};

RankDeviceCall::RankDeviceCall(layer::RankLayer& layer, const Args& args)
    : layer_(layer),
      args_(args),
      experts_(experts_of(layer.part().problem())),
      calls_(args.tokens <= 64 ? 24 : 4),
      hidden_(args.hidden.size()),
      logits_(bytes_of(calls_ * args.tokens * experts_, sizeof(float))),
      token_ids_(bytes_of(calls_ * args.tokens, sizeof(std::int64_t))),
      ids_(bytes_of(args.tokens * layer.part().problem().top_k(), sizeof(std::int32_t))),
      out_(args.hidden.size()),
      workspace_(layer.workspace_bytes()) {
  hidden_.upload(args.hidden.data());
  if (args.behind != nullptr) behind_ = std::make_unique<Behind>(*args.behind);
  layer.group().barrier(kPhase);
}

RankDeviceCall::~RankDeviceCall() = default;

void RankDeviceCall::set(std::int64_t i, const std::vector<float>& logits,
                         const std::vector<std::int64_t>& token_ids) {
  const std::size_t logit_bytes = bytes_of(std::int64_t(logits.size()), sizeof(float));
  const std::size_t id_bytes = bytes_of(args_.tokens, sizeof(std::int64_t));
  logits_.upload_part(logits.data(), std::size_t(i) * logit_bytes, logit_bytes);
  token_ids_.upload_part(token_ids.data(), std::size_t(i) * id_bytes, id_bytes);
}

ForwardArgs RankDeviceCall::args(std::int64_t i) {
  ForwardArgs f;
  f.tokens = args_.tokens;
  f.hidden = hidden_.data();
  f.hidden_stride = f.out_stride = layer_.part().problem().hidden;
  f.logits = {static_cast<const float*>(logits_.data()) + i * args_.tokens * experts_, args_.tokens,
              experts_, experts_};
  f.token_ids = static_cast<const std::int64_t*>(token_ids_.data()) + i * args_.tokens;
  f.out = out_.data();
  f.trace = args_.trace;
  f.stream = stream_.get();
  f.workspace = {static_cast<std::byte*>(workspace_.data()), workspace_.size()};
  return f;
}

void RankDeviceCall::enqueue(std::int64_t i) {
  behind_ ? layer_.forward(args(i), behind_->args()) : layer_.forward(args(i));
}

/// Returns when every rank's work has ended well.
void RankDeviceCall::end() {
  layer_.wait(stream_.get());
  layer_.group().barrier(kPhase);
}

double RankDeviceCall::forward() {
  if (!forwards_) {
    enqueue(0);  // kernels are loaded
    end();
    forwards_.emplace(stream_, [&] {
      for (std::int64_t i = 0; i < calls_; ++i) enqueue(i);
    });
  }
  layer_.group().barrier(kPhase);
  enqueue(0);
  const double us = forwards_->run() / double(calls_);
  end();
  return us;
}

double RankDeviceCall::route() {
  if (!routes_)
    routes_.emplace(stream_, [&] {
      for (std::int64_t i = 0; i < calls_; ++i) {
        ForwardArgs f = args(i);
        f.logits = {};
        layer::device_rank_route(layer_.part(), f);
      }
    });
  return routes_->run() / double(calls_);
}

void RankDeviceCall::fetch(std::span<std::byte> out, std::span<std::int32_t> ids) {
  out_.upload(out.data());  // what the caller poisoned
  layer_.group().barrier(kPhase);
  ForwardArgs f = args(0);
  f.ids_out = static_cast<std::int32_t*>(ids_.data());
  layer_.forward(f);
  end();
  out_.download(out.data());
  ids_.download(ids.data());
  layer_.group().barrier(kPhase);
}

void RankDeviceCall::fetch_behind() {
  args_.behind->poison();
  behind_->residual_out.upload(args_.behind->residual_out().data());
  behind_->norm_out.upload(args_.behind->norm_out().data());
  layer_.group().barrier(kPhase);
  layer_.forward(args(0), behind_->args());
  end();
  behind_->residual_out.download(args_.behind->residual_out().data());
  behind_->norm_out.download(args_.behind->norm_out().data());
  layer_.group().barrier(kPhase);
}

}  // namespace switchyard
