// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/allreduce_mirror.h"

#include <variant>

#include "switchyard/formats/nvfp4.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm_rows.h"

namespace switchyard::api {
namespace {

std::int64_t tensor_bytes(const ops::CallShape& s, std::int64_t rows) {
  return rows * s.hidden * std::int64_t(size_of(s.dtype));
}

}  // namespace

template <class T>
T* AllReduceMirror::mirror(T* host, std::int64_t bytes, bool output) {
  if (host == nullptr || bytes == 0) return nullptr;
  auto* plain = const_cast<void*>(static_cast<const void*>(host));
  tensors_.push_back({std::make_unique<DeviceMemory>(std::size_t(bytes)), plain, output});
  return static_cast<T*>(tensors_.back().memory->data());
}

void AllReduceMirror::mirror_source(const ops::AllReduceCall& host) {
  const ops::CallShape& s = host.shape;
  if (const auto* plain = std::get_if<ops::PlainSource>(&host.source)) {
    device_.source = ops::PlainSource{mirror(plain->input, tensor_bytes(s, s.tokens))};
  } else if (const auto* r = std::get_if<ops::MoeReductionSource>(&host.source)) {
    ops::MoeReductionSource out = *r;
    out.active_experts_token_input =
        mirror(r->active_experts_token_input, tensor_bytes(s, r->num_experts * s.tokens));
    out.scale_input = mirror(r->scale_input, r->num_experts * s.tokens * 4);
    out.token_input = mirror(r->token_input, tensor_bytes(s, s.tokens));
    device_.source = out;
  } else {
    const auto& f = std::get<ops::MoeFinalizeSource>(host.source);
    const std::int64_t choices = s.tokens * f.top_k;
    ops::MoeFinalizeSource out = f;
    out.rows = mirror(f.rows, tensor_bytes(s, f.num_rows));
    out.expanded_idx_to_permuted_idx = mirror(f.expanded_idx_to_permuted_idx, choices * 4);
    out.expert_scale_factor =
        mirror(f.expert_scale_factor, choices * std::int64_t(size_of(f.scale_dtype)));
    out.shared_expert_output = mirror(f.shared_expert_output, tensor_bytes(s, s.tokens));
    device_.source = out;
  }
}

void AllReduceMirror::mirror_norm(const ops::NormArgs& host) {
  const ops::CallShape& s = device_.shape;
  ops::NormArgs out = host;
  out.residual_in = mirror(host.residual_in, tensor_bytes(s, s.tokens));
  out.rms_gamma = mirror(host.rms_gamma, tensor_bytes(s, 1));
  out.residual_out = mirror(host.residual_out, tensor_bytes(s, s.tokens), true);
  out.norm_out = mirror(host.norm_out, tensor_bytes(s, s.tokens), true);
  const std::int64_t codes = s.tokens * ops::quant_code_bytes(host, s.hidden);
  if (auto* q = std::get_if<ops::Fp8StaticOut>(&out.quant)) {
    q->scale.value = mirror(q->scale.value, 4);
    q->quant_out = mirror(q->quant_out, codes, true);
  } else if (auto* n = std::get_if<ops::Nvfp4Out>(&out.quant)) {
    const std::int64_t blocks = (s.hidden + formats::kNvfp4Block - 1) / formats::kNvfp4Block;
    n->scale.value = mirror(n->scale.value, 4);
    n->quant_out = mirror(n->quant_out, codes, true);
    n->scale_out =
        mirror(n->scale_out, formats::padded_scale_bytes(n->layout, {s.tokens, blocks}), true);
  } else if (auto* g = std::get_if<ops::Fp8GroupOut>(&out.quant)) {
    g->quant_out = mirror(g->quant_out, codes, true);
    g->scale_out = mirror(g->scale_out, ops::group_scale_bytes(s.tokens, s.hidden, g->group), true);
  } else if (auto* t = std::get_if<ops::Fp8TokenOut>(&out.quant)) {
    t->quant_out = mirror(t->quant_out, codes, true);
    t->scale_out = mirror(t->scale_out, s.tokens * 4, true);
  }
  device_.norm = out;
}

AllReduceMirror::AllReduceMirror(const ops::AllReduceCall& host) : device_(host) {
  mirror_source(host);
  device_.output = mirror(host.output, tensor_bytes(host.shape, host.shape.tokens), true);
  if (host.norm) mirror_norm(*host.norm);
  upload();
}

void AllReduceMirror::upload() {
  for (Tensor& t : tensors_) t.memory->upload(t.host);
}

void AllReduceMirror::download() const {
  for (const Tensor& t : tensors_)
    if (t.output) t.memory->download(t.host);
}

}  // namespace switchyard::api
