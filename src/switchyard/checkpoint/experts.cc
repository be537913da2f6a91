// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/experts.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/config.h"
#include "switchyard/checkpoint/finite.h"
#include "switchyard/checkpoint/linear.h"
#include "switchyard/checkpoint/stacked.h"

namespace switchyard::checkpoint {
namespace {

/// Module names of one expert below `folder`; gate is empty for kinds with one projection.
struct Projections {
  std::string gate, up, down;
};

Projections projections(const Family& family, std::string_view folder, std::size_t alternative) {
  auto pick = [&](std::string_view names) {
    return names.empty() ? std::string() : cat(folder, ".", alternatives(names).at(alternative));
  };
  return {pick(family.gate), pick(family.up), pick(family.down)};
}

BiasSource find_bias(BlockReader& reader, const std::string& base, std::int64_t count) {
  std::string name;
  const Tensor* t = reader.want(base + ".bias", {float_types(), {count}}, &name);
  if (t) check_floats(reader, *t, name);
  return t ? BiasSource{t->bytes.data(), t->type, count, 1} : BiasSource{};
}

/// One expert with tensors of its own.
struct ExpertArgs {
  Projections names;
  std::int64_t hidden = 0, inter = 0;
  bool bias = false;
  const Scheme* scheme = nullptr;
};

std::optional<ExpertSources> find_expert(BlockReader& reader, const ExpertArgs& a) {
  ExpertSources out;
  auto linear = [&](const std::string& base, std::int64_t rows, std::int64_t cols) {
    return find_linear(reader, {.base = base, .rows = rows, .cols = cols, .scheme = a.scheme});
  };
  const bool gated = !a.names.gate.empty();
  if (gated) {
    out.gate = linear(a.names.gate, a.inter, a.hidden);
    if (a.bias) out.gate_bias = find_bias(reader, a.names.gate, a.inter);
  }
  auto up = linear(a.names.up, a.inter, a.hidden);
  auto down = linear(a.names.down, a.hidden, a.inter);
  if (a.bias) {
    out.up_bias = find_bias(reader, a.names.up, a.inter);
    out.down_bias = find_bias(reader, a.names.down, a.hidden);
  }
  if (!up || !down || (gated && !out.gate)) return {};
  out.up = std::move(*up);
  out.down = std::move(*down);
  return out;
}

/// A bias behind the weighted sum, as a bias of every expert's output: the weights sum to 1.
void add_output_bias(const BlockContext& c, std::vector<ExpertSources>& experts) {
  const Problem& p = c.problem;
  std::string name;
  const Tensor* t = c.reader.want(c.family.output_bias, {float_types(), {p.hidden}}, &name);
  if (!t || !check_floats(c.reader, *t, name)) return;
  for (ExpertSources& e : experts) {
    if (e.gate) e.gate_bias.count = p.inter;
    e.up_bias.count = p.inter;
    e.down_bias = {t->bytes.data(), t->type, p.hidden, 1};
  }
}

/// Every projection of one expert must have `scheme`: a layer runs in one format.
void check_uniform(const BlockContext& c, const Projections& names, const Scheme& scheme) {
  for (const std::string* name : {&names.gate, &names.up, &names.down}) {
    if (name->empty()) continue;
    std::string module = cat(c.reader.block(), ".", *name);
    Scheme own = c.quantization.scheme_of(module);
    if (own == scheme) continue;
    c.reader.fault(
        FindingKind::kContradiction, module,
        cat("module '", module, "' is declared ", own.format, " and its neighbours ", scheme.format,
            "; the routed experts of one layer must share a format, change the exclude list"));
  }
}

void check_elements(const BlockContext& c, const std::vector<ExpertSources>& experts) {
  const formats::WeightLayout& first = experts.front().up.layout;
  for (const ExpertSources& e : experts)
    for (const WeightSource* w : {e.gate ? &*e.gate : &e.up, &e.up, &e.down})
      if (w->layout != first)
        return c.reader.fault(
            FindingKind::kMistyped, w->name,
            cat("tensor '", w->name, "' is ", formats::to_string(w->layout.element), " and '",
                experts.front().up.name, "' is ", formats::to_string(first.element),
                "; the routed experts of one layer must share a type"));
}

/// Takes the canonical decimal number off the front of `name`, which then starts behind it.
std::optional<std::int64_t> leading_index(std::string_view& name) {
  std::int64_t index = 0;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  std::size_t digits = std::size_t(end - name.data());
  bool canonical =
      error == std::errc() && index >= 0 && name[0] != '-' && (digits == 1 || name[0] != '0');
  if (!canonical) return {};
  name.remove_prefix(digits);
  return index;
}

std::string strip_weight(std::string_view name) {
  if (name.ends_with(".weight")) name.remove_suffix(7);
  return std::string(name);
}

}  // namespace

ExpertSpelling find_spelling(const Family& family, const BlockReader& reader,
                             std::int64_t num_experts) {
  constexpr std::string_view kFolder = "experts.";
  std::vector<Projections> spellings;
  for (std::size_t a = 0; a < alternatives(family.up).size(); ++a)
    spellings.push_back(projections(family, "", a));
  // One pass over what is there: a config may declare thousands of experts that are not.
  std::optional<std::pair<std::int64_t, std::size_t>> first;  // expert, alternative
  auto names = reader.names(kFolder);
  for (std::string_view name : names) {
    name.remove_prefix(kFolder.size());
    auto expert = leading_index(name);
    if (!expert || *expert >= num_experts) continue;
    for (std::size_t a = 0; a < spellings.size(); ++a)
      if (name.starts_with(spellings[a].up + ".") || name.starts_with(spellings[a].down + "."))
        first = std::min(first.value_or(std::pair{num_experts, a}), std::pair{*expert, a});
  }
  if (first && first->first == 0) return {false, first->second};
  if (reader.peek(family.stacked_up) || reader.peek(family.stacked_down)) return {true, 0};
  if (family.mxfp4_blocks && !names.empty()) return {true, 0};
  return first ? ExpertSpelling{false, first->second}
               : ExpertSpelling{family.stacked_by_default, 0};
}

Scheme routed_scheme(const Family& family, const Quantization& quantization,
                     const std::string& block, const ExpertSpelling& spelling) {
  if (!spelling.stacked)
    return quantization.scheme_of(
        cat(block, ".", projections(family, "experts.0", spelling.alternative).up));
  return quantization.scheme_of(
      cat(block, ".", strip_weight(alternatives(family.stacked_up).front())));
}

std::vector<ExpertSources> find_experts(const BlockContext& c, const ExpertSpelling& spelling,
                                        const Scheme& scheme) {
  const Problem& p = c.problem;
  std::vector<ExpertSources> out;
  if (spelling.stacked) {
    out = find_stacked(c, scheme);
  } else {
    for (std::int64_t e = 0; e < p.num_experts(); ++e) {
      Projections names = projections(c.family, cat("experts.", e), spelling.alternative);
      check_uniform(c, names, scheme);
      auto expert = find_expert(c.reader, {.names = names,
                                           .hidden = p.expert_hidden(),
                                           .inter = p.inter,
                                           .bias = c.family.expert_bias,
                                           .scheme = &scheme});
      if (expert) out.push_back(std::move(*expert));
    }
  }
  if (std::int64_t(out.size()) != p.num_experts()) return {};
  check_elements(c, out);
  if (!c.family.output_bias.empty()) add_output_bias(c, out);
  return out;
}

std::optional<SharedSources> find_shared(const BlockContext& c) {
  std::size_t alternative = 0;
  for (std::size_t a = alternatives(c.family.up).size(); a-- > 0;) {
    Projections p = projections(c.family, c.family.shared, a);
    for (const std::string& name : {p.gate, p.up, p.down})
      if (!name.empty() && c.reader.any(name + ".")) alternative = a;
  }
  Projections names = projections(c.family, c.family.shared, alternative);
  SharedSources out;
  out.scheme = c.quantization.scheme_of(cat(c.reader.block(), ".", names.up));
  check_uniform(c, names, out.scheme);
  auto weights = find_expert(c.reader, {.names = names,
                                        .hidden = c.problem.hidden,
                                        .inter = c.problem.shared_inter,
                                        .bias = false,
                                        .scheme = &out.scheme});
  if (!weights) return {};
  out.weights = std::move(*weights);
  return out;
}

}  // namespace switchyard::checkpoint
