// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "switchyard/base/check.h"
#include "switchyard/base/cuda_launch.h"
#include "switchyard/ops/allreduce_norm/device_kernels.h"

namespace switchyard::ops {
namespace {

using fused::FusedCall;
using fused::Launch;

constexpr std::int64_t kMaxDeviceRows = (std::int64_t(1) << 31) - 1;

/// Whether rows of all tensors that a kernel touches allow accesses of 16 bytes.
class Alignment {
 public:
  explicit Alignment(const CallShape& s) : aligned_(s.hidden % kAllReduceUnit == 0) {}
  void need(const void* p, std::uintptr_t bytes = 16) {
    aligned_ = aligned_ && reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
  }
  bool vectors() const { return aligned_; }

 private:
  bool aligned_;
};

/// Takes a source over.
struct TakeSource {
  FusedCall& c;
  bool operator()(const PlainSource& s) const {
    c.input = s.input;
    return false;
  }
  bool operator()(const MoeReductionSource& s) const {
    c.weighted = {.rows = s.active_experts_token_input,
                  .num_rows = s.num_experts * c.tokens,
                  .count = std::int32_t(s.num_experts),
                  .weights = s.scale_input,
                  .factor = s.routed_scaling_factor.value_or(1),
                  .extra = s.token_input};
    return true;
  }
  bool operator()(const MoeFinalizeSource& s) const {
    c.weighted = {.rows = s.rows,
                  .num_rows = s.num_rows,
                  .index = s.expanded_idx_to_permuted_idx,
                  .count = std::int32_t(s.top_k),
                  .weights = s.expert_scale_factor,
                  .weights_in_t = s.scale_dtype != Dtype::kF32,
                  .factor = s.routed_scaling_factor.value_or(1),
                  .extra = s.shared_expert_output};
    return true;
  }
};

/// Takes a quantised output over.
struct TakeQuant {
  fused::DeviceQuant& q;
  void operator()(const std::monostate&) const {}
  void operator()(const Fp8StaticOut& out) const {
    q.scale = out.scale.value;
    q.codes = out.quant_out;
  }
  void operator()(const Nvfp4Out& out) const {
    q.scale = out.scale.value;
    q.codes = out.quant_out;
    q.scales = out.scale_out;
    q.layout = out.layout;
  }
  void operator()(const Fp8GroupOut& out) const {
    q.codes = out.quant_out;
    q.scales = out.scale_out;
    q.group = out.group;
  }
  void operator()(const Fp8TokenOut& out) const {
    q.codes = out.quant_out;
    q.scales = reinterpret_cast<std::uint8_t*>(out.scale_out);
  }
};

void take_norm(const NormArgs& n, FusedCall& c) {
  c.has_norm = true;
  c.wants_norm = n.wants_norm();
  c.residual_in = n.residual_in;
  c.gamma = n.rms_gamma;
  c.eps = n.rms_eps;
  c.weight_bias = n.weight_bias;
  c.residual_out = n.residual_out;
  c.norm_out = n.norm_out;
  c.quant.kind = n.quant_kind();
  std::visit(TakeQuant{c.quant}, n.quant);
}

bool vectors_of(const CallShape& s, const FusedCall& c) {
  Alignment a(s);
  for (const void* p : {c.input, c.weighted.rows, c.weighted.extra, c.residual_in, c.gamma})
    a.need(p);
  for (const void* p : {c.output, c.residual_out, c.norm_out}) a.need(p);
  a.need(c.quant.codes, 8);
  return a.vectors();
}

/// Few tokens get a thread for every unit, so that nothing waits twice; many get small blocks, of
/// which several share a processor and hide each other's waits.
Launch launch_of(const FusedCall& c, bool narrow, AllReduceStrategy strategy,
                 const AllReduceGeometry& geometry) {
  constexpr int kFewTokens = 132, kSmallBlock = 256, kMost = 1024, kMostInLoops = 512;
  auto whole_warps = [](int threads) { return (threads + 31) / 32 * 32; };
  Launch l{.two_shot = strategy == AllReduceStrategy::kTwoShot && c.peers.ranks > 1,
           .geometry = geometry};
  const int most = geometry.threads > 0     ? whole_warps(geometry.threads)
                   : c.tokens <= kFewTokens ? kMost
                                            : kSmallBlock;
  l.once = narrow && !l.two_shot && c.units <= std::min(most, kMost);
  l.threads = std::min({whole_warps(c.units), most, l.once ? kMost : kMostInLoops});
  l.shared_bytes = fused::row_memory_bytes(c.units, c.staged);
  return l;
}

__global__ void empty(std::uint32_t* words, std::int64_t count) {
  for (std::int64_t i = blockIdx.x * std::int64_t(blockDim.x) + threadIdx.x; i < count;
       i += std::int64_t(gridDim.x) * blockDim.x)
    words[i] = kNothingArrived;
}

}  // namespace

void allreduce_norm_cuda(const AllReduceCall& call, AllReduceStrategy strategy,
                         const AllReducePeers& peers, const AllReduceGeometry& geometry,
                         Stream stream) {
  call.check();
  ensure(strategy != AllReduceStrategy::kAuto, "allreduce: a launch without a strategy");
  const CallShape& s = call.shape;
  require(s.hidden <= kMaxDeviceHidden, "allreduce: hidden = ", s.hidden,
          " on a GPU; the limit is ", kMaxDeviceHidden, " (a row lies in shared memory)");
  if (const auto* r = std::get_if<MoeReductionSource>(&call.source))
    require(r->num_experts * s.tokens <= kMaxDeviceRows, "allreduce: ", r->num_experts,
            " experts x ", s.tokens, " tokens on a GPU; the limit is ", kMaxDeviceRows, " rows");
  FusedCall c{.tokens = s.tokens,
              .hidden = s.hidden,
              .units = int((s.hidden + kAllReduceUnit - 1) / kAllReduceUnit),
              .legacy = s.legacy_rounding,
              .weighted = {},
              .output = call.output,
              .quant = {},
              .peers = peers};
  const bool weighted = std::visit(TakeSource{c}, call.source);
  if (call.norm) take_norm(*call.norm, c);
  c.vectors = vectors_of(s, c);
  c.staged = weighted && c.vectors && !c.legacy && c.weighted.count <= fused::kStagedChoices;
  c.word_scales = reinterpret_cast<std::uintptr_t>(c.quant.scales) % 4 == 0;
  // One rank alone rounds nothing on a wire that it has none of.
  const bool wide = s.fp32_wire || s.dtype == Dtype::kF32 || peers.ranks == 1;
  Launch launch = launch_of(c, !wide, strategy, geometry);
  launch.weighted = weighted;
  if (s.dtype == Dtype::kBf16) return fused::launch_bf16(c, wide, launch, stream);
  if (s.dtype == Dtype::kFp16) return fused::launch_fp16(c, wide, launch, stream);
  fused::launch_f32(c, wide, launch, stream);
}

void empty_exchange_cuda(std::uint32_t* words, std::int64_t count, Stream stream) {
  constexpr unsigned kBlocks = 264, kThreads = 512;
  empty<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(words, count);
  cuda_check(cudaGetLastError(), "allreduce: emptying of the exchange memory");
}

}  // namespace switchyard::ops
