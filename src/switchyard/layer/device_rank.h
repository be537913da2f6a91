// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "switchyard/base/arena.h"
#include "switchyard/core/routing_launch.h"
#include "switchyard/layer/layer.h"

namespace switchyard::layer {

/// True when the layer's leaf runs on cuda.
bool on_cuda(const Layer& layer);

/// Errors:  UsageError, naming `call`, unless the current GPU is the one that holds the layer.
void check_gpu(const Layer& layer, std::string_view call);

/// The parts of a forward's workspace; the last one belongs to whichever expert bank is running.
struct DeviceParts {
  std::span<float> logits;
  std::span<std::int32_t> ids, shared_ids;
  std::span<float> weights, shared_weights, shared_out;
  std::span<std::byte> ffn;
};

// The steps that a scheduler of one rank and one of several have in common, each enqueued on
// args.stream. A part of a layer has its own numbers of the experts: only choices are the layer's.

/// Takes the parts of a forward of up to `tokens` tokens.
DeviceParts take_device_parts(Arena& arena, const Layer& layer, std::int64_t tokens);
/// Checks stream, capture and that the arrays lie on the current GPU. Errors: UsageError.
void check_device_call(const Layer& layer, const ForwardArgs& args);
/// The caller's choices or routing's, and the fused shared experts behind them.
void choose_on_device(const Layer& layer, const ForwardArgs& args, const DeviceParts& parts);
/// Runs the shared expert into parts.shared_out.
void run_shared_on_device(const Layer& layer, const ForwardArgs& args, const DeviceParts& parts);
/// A call of the routed experts on parts' choices, but for what it writes.
ops::FfnArgs routed_on_device(const Layer& layer, const ForwardArgs& args,
                              const DeviceParts& parts);
/// Runs such a call, with its tactic.
void run_routed_on_device(const Layer& layer, const ForwardArgs& args, ops::FfnArgs& call);
/// What finalize still multiplies.
float pending_factor(const Layer& layer, const ForwardArgs& args);
/// What the caller asked to see of the choices, and the rest of an unfinalised output.
void report_on_device(const Layer& layer, const ForwardArgs& args, const DeviceParts& parts);

/// Copies what a forward on cuda reads beside the experts to the device.
/// Errors: DeviceError when the device refuses, or when the build has no CUDA.
DeviceTables upload_tables(const checkpoint::LayerWeights& weights);

/// The scheduler of one rank on cuda: the stages of single_rank_forward(), enqueued on args.stream.
/// Allocates nothing and waits for nothing, so that it can be captured into a graph.
///
/// Errors:  UsageError for a broken argument, DeviceError when a launch fails.
void device_rank_forward(const Layer& layer, const ForwardArgs& args);
/// The router alone, its GEMM and the choice, enqueued on args.stream; leaves its result in the
/// workspace. Errors: as device_rank_forward().
void device_rank_route(const Layer& layer, const ForwardArgs& args);
/// Whether a call of `tokens` tokens that routes does so in the launch that sorts and quantises;
/// for a layer of one rank on any device. Pure.
RoutingLaunchReport routing_launch(const Layer& layer, std::int64_t tokens);
/// Runs the layer on copies of a call whose pointers are the host's, on a stream of its own, and
/// waits: for judges and tests, which hold the gate where updates may come. The workspace is its
/// own, poisoned; args.stream is not read.
///
/// Errors:  as device_rank_forward(), and DeviceError for what the launched work failed with.
void forward_from_host(const Layer& layer, const ForwardArgs& args);
/// A bank's experts alone, on copies of a call whose pointers are the host's: fills in what the
/// bank, the device and its stream give, and waits: for judges and tests. Of the call it reads
/// tokens, x, ids, weights, the capture of `inter`, out and rows, which may be null; out is fp32
/// and dense; rows of skipped choices stay as they were.
///
/// Errors:  as forward_from_host().
void experts_from_host(const leaves::Leaf& leaf, const ExpertBank& bank, const ops::FfnArgs& call);
/// What the layer's router says of the tokens of a call whose pointers are the host's.
///
/// Shapes:  logits [tokens, E+Z].
/// Errors:  as forward_from_host().
void logits_from_host(const Layer& layer, const ForwardArgs& args, float* logits);
/// Where device_rank_route() leaves the router's logits of `tokens` tokens, in `workspace`.
const float* device_rank_logits(const Layer& layer, std::span<std::byte> workspace,
                                std::int64_t tokens);
/// Workspace of device_rank_forward(), in device memory; reads the same layout as the forward.
std::size_t device_rank_workspace(const Layer& layer, std::int64_t max_tokens);

}  // namespace switchyard::layer
