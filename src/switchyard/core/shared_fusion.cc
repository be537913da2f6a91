// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/shared_fusion.h"

namespace switchyard {
namespace {

template <class... Args>
Eligibility unless(bool ok, Reject reason, const Args&... parts) {
  return ok ? Eligibility::yes() : Eligibility::no(reason, cat(parts...));
}

Eligibility opted_in(const Deployment& d) {
  bool asked = d.fuse_shared || d.env.flag(kSharedFusionSwitch) == "1";
  return unless(asked, Reject::kPathNotEnabled, "nobody asked for it; set fuse_shared or ",
                kSharedFusionSwitch, "=1");
}

Eligibility one_place(const Deployment& d) {
  return unless(d.ep == 1 && !d.attention_dp(), Reject::kTopologyUnsupported, "ep is ", d.ep,
                " and attention is ", d.attention_dp() ? "data-parallel" : "not data-parallel",
                "; fusing needs ep 1 and no attention DP");
}

Eligibility fitting_shape(const Problem& p) {
  std::int64_t width = p.num_shared * p.inter;
  return first_reject({
      unless(p.num_shared > 0, Reject::kShapeUnaligned, "the layer has no shared expert"),
      unless(p.shared_inter == width, Reject::kShapeUnaligned, "shared width is ", p.shared_inter,
             ", ", p.num_shared, " experts of width ", p.inter, " need ", width),
      unless(p.latent == 0, Reject::kShapeUnaligned,
             "the routed experts work in a latent width of ", p.latent,
             ", the shared one reads the hidden states of width ", p.hidden),
      unless(!p.shared_gate, Reject::kActivationUnsupported,
             "the shared expert has a sigmoid gate, a fused one has weight 1"),
  });
}

Eligibility same_kind(const Problem& p, const SharedFusionQuestion& q) {
  return first_reject({
      unless(fold_format(q.format) == fold_format(p.format), Reject::kQuantUnsupported,
             "shared weights are ", show_format(fold_format(q.format)), ", routed ones ",
             show_format(fold_format(p.format))),
      unless(q.activation == p.activation, Reject::kActivationUnsupported,
             "the shared activation differs from the routed ", describe(p.activation)),
      unless(q.same_static_scales, Reject::kQuantUnsupported,
             "the shared expert's static activation scales differ from the routed experts'"),
  });
}

Eligibility whole_blocks(const Problem& p, const SharedFusionQuestion& q) {
  return unless(p.num_shared == 1 || p.inter % q.slice_multiple == 0, Reject::kShapeUnaligned,
                "the ", p.num_shared, " shared experts would be cut every ", p.inter,
                " columns, their scale blocks allow multiples of ", q.slice_multiple);
}

Eligibility enough_choices(const Problem& p) {
  std::int64_t choices = p.top_k() + p.num_shared;
  return first_reject({
      unless(p.routing.zero_experts == 0, Reject::kRoutingUnsupported, "the layer has ",
             p.routing.zero_experts, " zero experts, whose ids follow the routed ones"),
      unless(choices <= kMaxTopK, Reject::kRoutingUnsupported, "top_k ", p.top_k(), " + ",
             p.num_shared, " shared = ", choices, " choices exceed ", kMaxTopK),
  });
}

}  // namespace

Eligibility can_fuse_shared(const Problem& p, const Deployment& d, const SharedFusionQuestion& q) {
  return first_reject({opted_in(d), one_place(d), fitting_shape(p), same_kind(p, q),
                       whole_blocks(p, q), enough_choices(p)});
}

}  // namespace switchyard
