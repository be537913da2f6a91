// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/gates.h"

#include <algorithm>

#include "switchyard/base/nearest.h"

namespace switchyard {
namespace {

template <class... Args>
Eligibility no(Reject reason, const Args&... parts) {
  return Eligibility::no(reason, cat(parts...));
}

template <class E>
std::string list(std::initializer_list<E> values) {
  std::vector<std::string> words;
  for (E value : values) words.emplace_back(to_string(value));
  return join(words);
}

template <class E>
bool contains(std::initializer_list<E> values, E value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

Eligibility require_quant(const Problem& p, std::string_view format) {
  std::string asked = fold_format(p.format);
  if (asked == format) return Eligibility::yes();
  return no(Reject::kQuantUnsupported, "format is ", show_format(asked), ", this leaf serves ",
            show_format(format), " only");
}

Eligibility require_device(const Deployment& d, Device device) {
  if (d.device == device) return Eligibility::yes();
  return no(Reject::kTopologyUnsupported, "the layer is placed on ", to_string(d.device),
            ", this leaf runs on ", to_string(device));
}

Eligibility require_dep(const Deployment& d, std::string_view name) {
  if (d.env.has_dep(name)) return Eligibility::yes();
  return no(Reject::kDepMissing, "dependency ", name,
            " is absent (present: ", d.env.deps.empty() ? "none" : join(d.env.deps),
            "), this leaf needs it");
}

Eligibility require_sm(const Deployment& d, int least) {
  if (d.env.sm >= least) return Eligibility::yes();
  if (d.env.sm == 0)
    return no(Reject::kSmUnsupported, "no GPU was found, this leaf needs one of sm ", least,
              " or later");
  return no(Reject::kSmUnsupported, "the GPU is sm ", d.env.sm, ", this leaf needs sm ", least,
            " or later");
}

Eligibility require_dtype(const Problem& p, std::initializer_list<Dtype> served) {
  if (contains(served, p.dtype)) return Eligibility::yes();
  return no(Reject::kDtypeUnsupported, "hidden states are ", to_string(p.dtype), ", served are ",
            list(served));
}

Eligibility require_no_f32_mode(const Problem& p) {
  if (p.activations != ActivationMode::kF32) return Eligibility::yes();
  return no(Reject::kDtypeUnsupported,
            "activations = f32 exists on the cpu only; use format or bf16");
}

Eligibility require_activation(const Problem& p, std::initializer_list<ActivationType> served) {
  if (contains(served, type_of(p.activation))) return Eligibility::yes();
  return no(Reject::kActivationUnsupported, "activation is ", to_string(type_of(p.activation)),
            ", served are ", list(served));
}

Eligibility require_even_widths(const Problem& p) {
  auto odd = [](std::string_view name, std::int64_t width) {
    return no(Reject::kShapeUnaligned, name, " is ", width,
              ", 4-bit weights need an even one (two codes share a byte)");
  };
  if (p.expert_hidden() % 2 != 0) return odd(p.latent > 0 ? "latent" : "hidden", p.expert_hidden());
  if (p.inter % 2 != 0) return odd("inter", p.inter);
  return Eligibility::yes();
}

Eligibility require_slots(const Problem& p, const Deployment& d) {
  std::int64_t slots = d.num_slots(p.num_experts());
  if (slots < p.num_experts())
    return no(Reject::kEplbUnsupported, "slots = ", slots, " cannot hold ", p.num_experts(),
              " experts; ask for at least one slot per expert");
  if (slots > p.num_experts() && d.ep == 1)
    return no(Reject::kEplbUnsupported, "slots = ", slots, " for ", p.num_experts(),
              " experts: with ep = 1 every rank holds all experts, where replicas balance nothing; "
              "use one slot for each expert, or more ranks under dep or tep");
  if (slots > p.num_experts() && slots % d.ep != 0)
    return no(Reject::kSlotsNotDivisibleByEp, "slots = ", slots, " do not divide by ep = ", d.ep,
              "; replicated slots are laid out evenly");
  if (slots / d.ep > p.num_experts())
    return no(Reject::kEplbUnsupported, "slots = ", slots, " on ep = ", d.ep, " are ", slots / d.ep,
              " a rank, more than the ", p.num_experts(),
              " experts; a rank needs each expert once, take fewer slots");
  if (slots < d.ep)
    return no(Reject::kTopologyUnsupported, "ep = ", d.ep, " exceeds the ", slots,
              " slots; every rank must hold one");
  return Eligibility::yes();
}

Eligibility require_no_lora(const Deployment& d) {
  if (!d.lora) return Eligibility::yes();
  return no(Reject::kLoraUnsupported,
            "adapters on routed experts are asked for, this leaf applies none; merge them first");
}

}  // namespace switchyard
