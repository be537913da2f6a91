// SPDX-License-Identifier: Apache-2.0
// A leaf to copy into src/switchyard/leaves/: MXFP4 weights, with one predicate of its own.
#include "switchyard/formats/mxfp4.h"
#include "switchyard/leaves/gate.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"

namespace switchyard::leaves {
namespace {

constexpr FormatSpec kSpec{
    .format = "my_format",
    .doc = "E2M1 weights with one E8M0 scale per 32, hidden widths of whole 64s.",
    .weights = formats::kMxfp4Layout,
    .cpu_ffn = &ops::kPanelFfnCpu,
};

// The chain that every CPU leaf has, then what only this one cannot do.
Eligibility can_implement(const Problem& p, const Deployment& d) {
  Eligibility verdict = cpu_gate(kSpec, p, d);
  if (!verdict.eligible() || p.hidden % 64 == 0) return verdict;
  return Eligibility::no(Reject::kShapeUnaligned,
                         cat("hidden is ", p.hidden, ", this leaf needs a multiple of 64"));
}

constexpr FormatLeaves with_own_gate() {
  FormatLeaves leaves = make_leaves<kSpec>();
  leaves.cpu.can_implement = can_implement;
  return leaves;
}

}  // namespace

/// The leaves of format "my_format"; on CUDA it is registered and not built.
const FormatLeaves& my_format() {
  static constexpr FormatLeaves kLeaves = with_own_gate();
  return kLeaves;
}

}  // namespace switchyard::leaves
