// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/activation.h"

#include <array>
#include <cmath>

#include "switchyard/base/check.h"
#include "switchyard/base/float_text.h"

namespace switchyard {
namespace {

constexpr std::array<std::string_view, 9> kNames = {
    "swiglu", "swiglu_bias", "situ", "geglu", "relu2", "silu", "gelu", "relu", "identity"};
static_assert(kNames.size() == std::variant_size_v<Activation>, "one name for each alternative");

template <class... Fs>
struct Overload : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overload(Fs...) -> Overload<Fs...>;

std::string text_of(const PerExpert& constant) {
  if (constant.values.size() == 1) return shortest_text(constant.values[0]);
  std::string out = "[";
  for (std::size_t e = 0; e < constant.values.size(); ++e)
    out += (e > 0 ? "," : "") + shortest_text(constant.values[e]);
  return out + "]";
}

std::string_view text_of(GeluForm form) { return form == GeluForm::kTanh ? "tanh" : "erf"; }

struct Checker {
  std::string_view kind;
  std::int64_t num_experts;

  void constant(std::string_view name, const PerExpert& c, bool must_be_positive) const {
    const auto size = std::int64_t(c.values.size());
    require(size == 1 || size == num_experts, "activation ", kind, ": ", name, " has ", size,
            " values; give 1 or one for each of the ", num_experts, " experts");
    for (std::int64_t e = 0; e < size; ++e)
      value(name, e, c.values[std::size_t(e)], must_be_positive);
  }

  void limit(std::string_view name, const std::optional<PerExpert>& c) const {
    if (c) constant(name, *c, true);
  }

  void value(std::string_view name, std::int64_t e, float v, bool must_be_positive) const {
    const bool ok = std::isfinite(v) && (!must_be_positive || v > 0);
    require(ok, "activation ", kind, ": ", name, " of expert ", e, " is ", v, "; it must be finite",
            must_be_positive ? " and > 0 (leave it out where there is none)" : "");
  }
};

void check_kind(const Checker& c, const Swiglu& a) { c.limit("clamp", a.clamp); }

void check_kind(const Checker& c, const SwigluBias& a) {
  c.constant("gate_sigmoid_scale", a.gate_sigmoid_scale, false);
  c.constant("linear_offset", a.linear_offset, false);
  c.limit("clamp", a.clamp);
}

void check_kind(const Checker& c, const SiTu& a) {
  c.constant("gate_softcap", a.gate_softcap, true);
  c.constant("linear_softcap", a.linear_softcap, true);
}

template <class Kind>
void check_kind(const Checker&, const Kind&) {}

std::string constants_of(const Swiglu& a) {
  std::string out = a.clamp ? "clamp=" + text_of(*a.clamp) : "";
  if (a.clamp_after_silu) out += out.empty() ? "after_silu" : ",after_silu";
  return out;
}

std::string constants_of(const SwigluBias& a) {
  const std::string out = cat("gate_sigmoid_scale=", text_of(a.gate_sigmoid_scale),
                              ",linear_offset=", text_of(a.linear_offset));
  return a.clamp ? out + ",clamp=" + text_of(*a.clamp) : out;
}

std::string constants_of(const SiTu& a) {
  return cat("gate_softcap=", text_of(a.gate_softcap),
             ",linear_softcap=", text_of(a.linear_softcap));
}

std::string constants_of(const Geglu& a) { return std::string(text_of(a.form)); }
std::string constants_of(const Gelu& a) { return std::string(text_of(a.form)); }

template <class Kind>
std::string constants_of(const Kind&) {
  return "";
}

void set_limit(ActivationParams& p, const std::optional<PerExpert>& clamp, std::int64_t expert) {
  p.has_limit = clamp.has_value();
  if (clamp) p.limit = clamp->at(expert);
}

}  // namespace

std::string_view to_string(ActivationType type) {
  const auto i = std::size_t(type);
  ensure(i < kNames.size(), "activation type ", i, " has no name");
  return kNames[i];
}

bool is_gated(ActivationType type) {
  return type == ActivationType::kSwiglu || type == ActivationType::kSwigluBias ||
         type == ActivationType::kSiTu || type == ActivationType::kGeglu;
}

void check(const Activation& a, std::int64_t num_experts) {
  const Checker checker{to_string(type_of(a)), num_experts};
  std::visit([&](const auto& kind) { check_kind(checker, kind); }, a);
}

std::string describe(const Activation& a) {
  const std::string constants = std::visit([](const auto& kind) { return constants_of(kind); }, a);
  const std::string name(to_string(type_of(a)));
  return constants.empty() ? name : name + "(" + constants + ")";
}

ActivationParams lower(const Activation& a, std::int64_t expert) {
  ActivationParams p{.type = type_of(a)};
  std::visit(Overload{[&](const Swiglu& k) {
                        set_limit(p, k.clamp, expert);
                        p.limit_after = k.clamp_after_silu;
                      },
                      [&](const SwigluBias& k) {
                        set_limit(p, k.clamp, expert);
                        p.alpha = k.gate_sigmoid_scale.at(expert);
                        p.beta = k.linear_offset.at(expert);
                      },
                      [&](const SiTu& k) {
                        p.alpha = k.gate_softcap.at(expert);
                        p.beta = k.linear_softcap.at(expert);
                      },
                      [&](const Geglu& k) { p.form = k.form; },
                      [&](const Gelu& k) { p.form = k.form; }, [](const auto&) {}},
             a);
  return p;
}

}  // namespace switchyard
