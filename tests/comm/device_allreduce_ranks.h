// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "switchyard/api/allreduce_mirror.h"
#include "switchyard/base/device_stream.h"
#include "switchyard/comm/device_allreduce.h"
#include "switchyard/resolve/probe_cuda.h"
#include "tests/comm/allreduce_ranks.h"
#include "tests/support/device.h"

namespace switchyard::test {

/// Long enough for what a GPU does, short enough for a test that hangs.
inline comm::Deadlines gpu_deadlines() {
  return {.warm_up = std::chrono::seconds(30), .serving = std::chrono::seconds(15)};
}

// Ranks that share a GPU wait for one another in kernels: each needs a connection of its own, and
// no kernel may be loaded when it is first launched, which waits for those that run.
inline const bool kManyConnections = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0) == 0 &&
                                     setenv("CUDA_MODULE_LOADING", "EAGER", 0) == 0;

/// Whether ranks share GPU 0, as there are fewer GPUs than ranks.
inline bool share_a_gpu(int ranks) { return resolve::probe_gpus().num_gpus < ranks; }
/// Makes the GPU of a rank the current one: its own, or the one that all share.
inline void take_seat(const comm::Group& g) { comm::use_gpu(share_a_gpu(g.size()) ? 0 : g.rank()); }
/// The options of a workspace of `g`'s ranks, wherever they sit.
inline comm::DeviceAllReduceOptions seated(const comm::Group& g,
                                           comm::DeviceAllReduceOptions options = {}) {
  options.shared_device = share_a_gpu(g.size());
  return options;
}

/// Replaces what two twins may write differently, the sign and payload of a NaN, by one form.
inline void unify_nans(Dtype t, std::vector<std::uint8_t>& bytes, std::size_t size) {
  for (std::size_t i = 0; i < size / size_of(t); ++i) {
    const float x = load_element(t, bytes.data(), std::int64_t(i));
    if (x != x)
      store_element(t, bytes.data(), std::int64_t(i), std::numeric_limits<float>::quiet_NaN());
  }
}

/// What a rank wrote, NaNs in one form.
inline std::vector<std::uint8_t> comparable(const ArSpec& spec, const ArData& data) {
  ArData copy = data;
  for (ArOutput* o : {&copy.output, &copy.residual_out, &copy.norm_out})
    unify_nans(spec.dtype, o->bytes, o->size);
  const ops::AllReduceQuant quant = spec.effective_quant();
  if (quant == ops::AllReduceQuant::kFp8Token)
    unify_nans(Dtype::kF32, copy.scale_out.bytes, copy.scale_out.size);
  if (quant != ops::AllReduceQuant::kNvfp4)
    for (std::size_t i = 0; i < copy.quant_out.size; ++i)
      if ((copy.quant_out.bytes[i] & 0x7f) == 0x7f) copy.quant_out.bytes[i] = 0x7f;
  return copy.outputs();
}

/// One rank's workspace, stream and tensors. The ranks meet around what frees memory: on a GPU that
/// they share this waits for all kernels, which may wait for the rank that frees.
struct DeviceRank {
  DeviceRank(comm::Group& g, const ArSpec& spec, const comm::DeviceAllReduceOptions& options = {})
      : group(g), workspace(g, capacity_of(spec), seated(g, options)) {
    group.barrier("workspaces built");
  }
  /// Runs `data`'s call and brings its outputs back.
  void run(ArData& data) {
    data.poison();
    const ops::AllReduceCall host = data.call();
    {
      api::AllReduceMirror mirror(host);
      group.barrier("inputs uploaded");
      workspace.run(mirror.call(), stream.get());
      workspace.wait(stream.get());
      group.barrier("calls ended");
      mirror.download();
    }
    group.barrier("tensors freed");
  }
  comm::Group& group;
  DeviceStream stream;
  comm::DeviceAllReduce workspace;
};

/// A good pattern-1 call on a new group: the GPUs and their contexts are as before.
inline void expect_good_call() {
  const ArSpec spec{.tokens = 4, .hidden = 128};
  std::vector<ArData> data = make_data(spec);
  expect_all_well(on_thread_ranks(2, gpu_deadlines(), [&](comm::Group& g) {
    take_seat(g);
    DeviceRank rank(g, spec);
    rank.run(data[std::size_t(g.rank())]);
  }));
  EXPECT_EQ(compare_with_oracle(spec, calls_of(data), data[0]), "");
}

}  // namespace switchyard::test
