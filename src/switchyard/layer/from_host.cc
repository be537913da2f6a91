// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "switchyard/base/check.h"
#include "switchyard/base/device_stream.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/rank_judge.h"

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

/// A call whose pointers are the host's, on the device.
class CallMirror {
 public:
  CallMirror(const Layer& layer, const ForwardArgs& host, std::size_t workspace_bytes);
  /// The same call there, on `stream`.
  ForwardArgs args(Stream stream);
  /// Brings back what it wrote.
  void fetch() const;

 private:
  const ForwardArgs& host_;
  const Unfinalised none_{};
  const Unfinalised& u_;
  const StageCapture wanted_;
  std::int64_t tokens_, choices_, size_;
  Mirror hidden_, logits_, token_ids_, ids_, weights_, factored_, out_, ids_out_, weights_out_;
  Mirror counts_, inter_, shared_inter_, rows_, row_weights_, row_index_, shared_rows_;
  std::vector<std::byte> poison_;
  Mirror workspace_;
  Unfinalised device_u_;
  StageCapture capture_;
};

std::int64_t all_experts(const Problem& p) { return p.num_experts() + p.routing.zero_experts; }

std::int64_t shared_width(const Layer& layer) {
  return layer.shared() != nullptr ? layer.shared()->shape.inter : 0;
}

CallMirror::CallMirror(const Layer& layer, const ForwardArgs& host, std::size_t workspace_bytes)
    : host_(host),
      u_(host.unfinalised != nullptr ? *host.unfinalised : none_),
      wanted_(host.capture != nullptr ? *host.capture : StageCapture{}),
      tokens_(host.tokens),
      choices_(tokens_ * layer.problem().top_k()),
      size_(std::int64_t(size_of(layer.options().dtype))),
      hidden_(host.hidden, extent(tokens_, layer.problem().hidden, host.hidden_stride, size_)),
      logits_(host.logits.data,
              extent(tokens_, all_experts(layer.problem()), host.logits.stride, 4)),
      token_ids_(host.token_ids, tokens_ * 8),
      ids_(host.routing.ids, choices_ * 4),
      weights_(host.routing.weights, choices_ * 4),
      factored_(host.routing.factored_weights, choices_ * 4),
      out_(host.out, extent(tokens_, layer.problem().hidden, host.out_stride, size_)),
      ids_out_(host.ids_out, choices_ * 4),
      weights_out_(host.weights_out, choices_ * 4),
      counts_(host.expert_counts, all_experts(layer.problem()) * 8),
      inter_(wanted_.inter, tokens_ * layer.routed().shape.top_k * layer.routed().shape.inter * 8),
      shared_inter_(wanted_.shared_inter, tokens_ * shared_width(layer) * 8),
      rows_(u_.rows, choices_ * layer.problem().hidden * size_),
      row_weights_(u_.weights, choices_ * 4),
      row_index_(u_.index, choices_ * 4),
      shared_rows_(u_.shared, tokens_ * layer.problem().hidden * size_),
      poison_(workspace_bytes, std::byte(0xff)),
      workspace_(poison_.data(), std::int64_t(poison_.size())),
      device_u_{rows_.as<void>(), row_weights_.as<float>(), row_index_.as<std::int32_t>(),
                shared_rows_.as<void>(), u_.pending_factor},
      capture_(wanted_) {
  capture_.inter = inter_.as<double>();
  capture_.shared_inter = shared_inter_.as<double>();
}

ForwardArgs CallMirror::args(Stream stream) {
  ForwardArgs a = host_;
  a.hidden = hidden_.as<void>();
  a.logits.data = logits_.as<float>();
  a.token_ids = token_ids_.as<std::int64_t>();
  a.routing = {ids_.as<std::int32_t>(), weights_.as<float>(), factored_.as<float>()};
  a.out = out_.as<void>();
  a.ids_out = ids_out_.as<std::int32_t>();
  a.weights_out = weights_out_.as<float>();
  a.expert_counts = counts_.as<std::int64_t>();
  if (host_.unfinalised != nullptr) a.unfinalised = &device_u_;
  if (host_.capture != nullptr) a.capture = &capture_;
  a.stream = stream;
  a.workspace = {workspace_.as<std::byte>(), poison_.size()};
  return a;
}

void CallMirror::fetch() const {
  out_.fetch(host_.out);
  ids_out_.fetch(host_.ids_out);
  weights_out_.fetch(host_.weights_out);
  counts_.fetch(host_.expert_counts);
  inter_.fetch(wanted_.inter);
  shared_inter_.fetch(wanted_.shared_inter);
  if (host_.unfinalised == nullptr) return;
  rows_.fetch(u_.rows);
  row_weights_.fetch(u_.weights);
  row_index_.fetch(u_.index);
  shared_rows_.fetch(u_.shared);
  host_.unfinalised->pending_factor = device_u_.pending_factor;
}

}  // namespace

void forward_from_host(const Layer& layer, const ForwardArgs& host) {
  require(host.unfinalised == nullptr || host.tokens == 0 ||
              (host.unfinalised->rows != nullptr && host.unfinalised->weights != nullptr &&
               host.unfinalised->index != nullptr),
          "forward: an unfinalised output needs rows, weights and index");
  CallMirror mirror(layer, host, layer.workspace_bytes(host.tokens));
  const DeviceStream stream;
  // The judge that called holds the gate.
  device_rank_forward(layer, mirror.args(stream.get()));
  stream.wait();
  mirror.fetch();
}

// On a GPU that ranks share, whoever frees memory waits for all kernels, and one of them may wait
// for the rank that frees: so they meet in front of the call, and around what is freed behind it.
void forward_from_host(RankLayer& ranks, const ForwardArgs& host) {
  constexpr std::string_view kPhase = "a call from the host";
  {
    CallMirror mirror(ranks.part(), host, ranks.workspace_bytes());
    const DeviceStream stream;
    ranks.group().barrier(kPhase);
    ranks.forward(mirror.args(stream.get()));
    ranks.wait(stream.get());
    ranks.group().barrier(kPhase);
    mirror.fetch();
  }
  ranks.group().barrier(kPhase);
}

void experts_from_host(const leaves::Leaf& leaf, const ExpertBank& bank, const ops::FfnArgs& host) {
  const ops::FfnShape& s = bank.shape;
  const std::int64_t t = host.tokens, choices = t * s.top_k;
  double* const inter_out = host.capture != nullptr ? host.capture->inter : nullptr;
  const Mirror x(host.x, extent(t, s.hidden, host.x_stride, std::int64_t(size_of(host.x_dtype))));
  const Mirror ids(host.ids, choices * 4), weights(host.weights, choices * 4);
  const Mirror out(host.out, t * s.hidden * 4), inter(inter_out, choices * s.inter * 8);
  ensure(host.rows == nullptr || host.rows_dtype == Dtype::kF32, "experts from the host: rows of ",
         to_string(host.rows_dtype), ", they are written in fp32");
  const Mirror rows(host.rows, choices * s.hidden * 4);
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
  f.out_dtype = f.rows_dtype = Dtype::kF32;
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
