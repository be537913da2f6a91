// SPDX-License-Identifier: Apache-2.0
#include "switchyard/resolve/report.h"

#include <algorithm>
#include <functional>

#include "switchyard/base/nearest.h"

namespace switchyard::resolve {
namespace {

std::string describe_problem(const Problem& p) {
  return cat("format ", show_format(p.format), ", activations ", to_string(p.activations), ", ",
             to_string(p.dtype), ", H ", p.hidden, ", I ", p.inter, ", E ", p.num_experts(), ", k ",
             p.top_k(), ", ", to_string(p.routing.method), ", ", describe(p.activation),
             p.expert_bias ? ", biases" : "",
             p.num_shared > 0 ? cat(", ", p.num_shared, " shared of width ", p.shared_inter) : "");
}

std::string describe_deployment(const Deployment& d) {
  std::string gpu = d.env.num_gpus > 0 ? cat(d.env.num_gpus, " GPU of sm ", d.env.sm) : "no GPU";
  return cat("ep ", d.ep, ", tp ", d.tp, ", ", to_string(d.parallel), ", ",
             d.slots > 0 ? cat(d.slots, " slots, ") : "", "cpu ", to_string(d.env.isa), ", ", gpu);
}

std::string describe_request(const Request& r) {
  std::vector<std::string> parts;
  if (!r.leaf.empty()) parts.push_back("leaf " + r.leaf);
  if (r.device) parts.push_back(cat("device ", to_string(*r.device)));
  if (!r.prefer.empty()) parts.push_back("prefer " + r.prefer);
  if (!r.comm.empty()) parts.push_back("strategy " + r.comm);
  return parts.empty() ? "nothing in particular" : join(parts);
}

std::string line(const Rejection& r) {
  return cat(r.candidate, "  ", to_string(r.reason), ": ", r.detail);
}

// A heading once, its further lines under it.
void section(std::string& out, std::string_view heading, const std::vector<std::string>& lines) {
  std::string label = cat(heading, std::string(13 - heading.size(), ' '));
  for (const std::string& text : lines) {
    out += cat(label, text, "\n");
    label.assign(label.size(), ' ');
  }
}

template <class T, class F>
std::vector<std::string> map(const std::vector<T>& items, F text) {
  std::vector<std::string> out;
  for (const T& item : items) out.push_back(text(item));
  return out;
}

}  // namespace

std::string to_text(const Report& r) {
  std::string out;
  section(out, "winner", {r.winner.empty() ? "none" : r.winner});
  section(out, "selected by",
          {cat(to_string(r.selected_by), r.degraded ? ", degraded from " + r.degraded_from : "")});
  section(out, "requested", {describe_request(r.requested)});
  section(out, "problem", {describe_problem(r.problem)});
  section(out, "deployment", {describe_deployment(r.deployment)});
  if (r.eligible.size() > 1) section(out, "also", {r.eligible.begin() + 1, r.eligible.end()});
  section(out, "rejected", map(r.rejected, line));
  if (r.eligible.empty() && r.rejected.empty())
    section(out, "rejected", {"nothing was considered; the list of leaves is at fault"});
  section(out, "strategies", map(r.strategies, [](const StrategyVerdict& s) {
            return s.reason
                       ? cat(s.strategy, "  ", to_string(*s.reason), ": ", s.detail)
                       : cat(s.strategy, "  can serve", s.detail.empty() ? "" : ", ", s.detail);
          }));
  if (r.strategies.empty() && r.deployment.ranks() == 1)
    section(out, "strategies", {"none, one rank has nobody to join"});
  section(out, "assumed",
          map(r.assumed, [](const Assumption& a) { return cat(a.field, " = ", a.value); }));
  section(out, "knobs", map(r.knobs, [](const Knob& k) {
            return cat(k.name, ": asked ", k.requested.empty() ? "nothing" : k.requested,
                       ", effective ", k.effective);
          }));
  section(out, "warnings", r.warnings);
  section(out, "fingerprint", {r.fingerprint});
  return out;
}

std::string summarise_rejections(const Report& report) {
  auto other_format = [](const Rejection& r) { return r.reason == Reject::kQuantUnsupported; };
  std::vector<Rejection> named = report.rejected;
  if (named.empty()) return "nothing was considered";
  std::stable_partition(named.begin(), named.end(), std::not_fn(other_format));
  auto others = std::find_if(named.begin() + 1, named.end(), other_format);
  std::int64_t rest = named.end() - others;
  named.erase(others, named.end());
  std::string text =
      join(map(named,
               [](const Rejection& r) {
                 return cat(r.candidate, "=", to_string(r.reason), " (", r.detail, ")");
               }),
           "; ");
  return rest == 0 ? text : cat(text, "; ", rest, " leaves of other formats");
}

}  // namespace switchyard::resolve
