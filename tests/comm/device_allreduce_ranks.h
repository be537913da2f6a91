// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "switchyard/api/allreduce_mirror.h"
#include "switchyard/base/device_stream.h"
#include "switchyard/comm/device_allreduce.h"
#include "switchyard/resolve/probe_cuda.h"
#include "tests/comm/allreduce_ranks.h"

namespace switchyard::test {

/// Long enough for what a GPU does, short enough for a test that hangs.
inline comm::Deadlines gpu_deadlines() {
  return {.warm_up = std::chrono::seconds(30), .serving = std::chrono::seconds(15)};
}

/// Skips where there are fewer than two GPUs, one for each rank.
class NeedsTwoGpus : public testing::Test {
 protected:
  void SetUp() override {
    const int gpus = resolve::probe_gpus().num_gpus;
    if (gpus < 2) GTEST_SKIP() << "needs two CUDA devices, has " << gpus;
  }
};

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

/// One rank's workspace, stream and tensors.
struct DeviceRank {
  DeviceRank(comm::Group& group, const ArSpec& spec, const comm::DeviceAllReduceOptions& options)
      : workspace(group, capacity_of(spec), options) {}
  /// Runs `data`'s call and brings its outputs back.
  void run(ArData& data) {
    data.poison();
    const ops::AllReduceCall host = data.call();
    api::AllReduceMirror mirror(host);
    workspace.run(mirror.call(), stream.get());
    workspace.wait(stream.get());
    mirror.download();
  }
  DeviceStream stream;
  comm::DeviceAllReduce workspace;
};

}  // namespace switchyard::test
