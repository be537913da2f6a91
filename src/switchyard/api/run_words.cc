// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/run_words.h"

#include <optional>

#include "switchyard/base/text.h"
#include "switchyard/resolve/probe.h"

namespace switchyard {
namespace {

using Words = std::vector<Processes::Agreed>;

std::string_view word_of(RoutingSkew skew) {
  constexpr std::string_view kWords[] = {"uniform", "zipf", "one"};
  return kWords[std::size_t(skew)];
}

template <class T>
std::string given(const std::optional<T>& value) {
  if (!value) return "its own";
  if constexpr (requires { to_string(*value); }) {
    return std::string(to_string(*value));
  } else {
    return cat(*value);
  }
}

std::string or_none(std::string_view text) { return std::string(text.empty() ? "none" : text); }

void add_layer(Words& out, const RunOptions& o) {
  out.push_back({"the layer", o.checkpoint.empty() ? o.preset : "of a checkpoint"});
  out.push_back({"its number", o.layer ? cat(*o.layer) : "every one"});
  out.push_back({"format", given(o.build.format)});
  out.push_back({"activations", std::string(to_string(o.build.activations))});
  out.push_back({"dtype", given(o.build.dtype)});
  out.push_back({"top_k", given(o.build.top_k)});
  out.push_back({"factor", given(o.build.routed_scaling_factor)});
  out.push_back({"shared expert", o.build.with_shared ? "with" : "without"});
  out.push_back({"parallel mlp", o.build.with_parallel_mlp ? "with" : "without"});
  out.push_back({"shared expert fusion", o.build.fuse_shared ? "with" : "without"});
  const bool calibrates = !o.calibrate.empty() || !o.build.calibration.empty();
  out.push_back({"calibration", calibrates ? "given tokens" : "none"});
}

void add_spread(Words& out, const RunOptions& o) {
  out.push_back({"ep", cat(o.build.ep)});
  out.push_back({"tp", cat(o.build.tp)});
  out.push_back({"parallel", given(o.build.parallel)});
  out.push_back({"slots", cat(o.build.slots)});
  out.push_back({"placement", o.placement.empty() ? "none" : "of a file"});
  out.push_back({"comm", or_none(o.build.comm)});
  out.push_back({"combine", given(o.build.combine)});
  out.push_back({"finalize", o.finalize});
  out.push_back({"chunk_tokens", cat(o.chunk_tokens)});
  out.push_back({"device", given(o.build.device)});
  out.push_back({"leaf", or_none(o.build.leaf)});
  out.push_back({"prefer", or_none(o.build.prefer)});
}

}  // namespace

std::vector<Processes::Agreed> switch_words() {
  Words out;
  for (const auto& [name, value] : resolve::environment().flags) out.push_back({name, value});
  return out;
}

std::vector<Processes::Agreed> run_words(std::string_view call, const RunOptions& o) {
  Words out = {{"the command", std::string(call)}};
  add_layer(out, o);
  out.push_back({"tokens", cat(o.tokens)});
  out.push_back({"routing", std::string(word_of(o.routing))});
  out.push_back({"seed", cat(o.seed)});
  add_spread(out, o);
  for (Processes::Agreed& word : switch_words()) out.push_back(std::move(word));
  return out;
}

}  // namespace switchyard
