// SPDX-License-Identifier: Apache-2.0
// Each field of the fused all-reduce's parameter structs reaches the kernels' arguments: set to
// another value it changes the outputs, as it changes the CPU twin's.
#include <gtest/gtest.h>

#include "tests/comm/allreduce_field_cases.h"
#include "tests/comm/device_allreduce_ranks.h"

namespace switchyard::comm {
namespace {

using ops::AllReduceStrategy;
using test::DeviceRank;
using test::FieldRun;

class DeviceAllReduceFields : public test::NeedsGpu {};

/// Runs every rank's call on its GPU.
void run_gpus(FieldRun& run) {
  test::expect_all_well(
      test::on_thread_ranks(int(run.spec.ranks), test::gpu_deadlines(), [&](Group& g) {
        test::take_seat(g);
        const auto me = std::size_t(g.rank());
        DeviceRank rank(g, run.spec, {.cost = AllReduceCost{}});
        run.data[me].poison();
        {
          api::AllReduceMirror mirror(run.calls[me]);
          g.barrier("inputs uploaded");
          rank.workspace.run(mirror.call(), rank.stream.get());
          rank.workspace.wait(rank.stream.get());
          g.barrier("calls ended");
          mirror.download();
        }
        g.barrier("tensors freed");
      }));
}

TEST_F(DeviceAllReduceFields, EachChangesTheOutputsAsInTheCpuTwin) {
  for (const test::FieldCase& c : test::field_cases()) {
    const std::string where = c.owner + "." + c.field;
    const auto before = test::comparable(c.base, test::run_ranks(c.base, {}, 1)[0]);
    for (AllReduceStrategy strategy : {AllReduceStrategy::kOneShot, AllReduceStrategy::kTwoShot}) {
      FieldRun host(c), device(c);
      for (FieldRun* run : {&host, &device})
        for (ops::AllReduceCall& call : run->calls) call.shape.strategy = strategy;
      test::expect_all_well(
          test::on_thread_ranks(int(host.spec.ranks), test::long_deadlines(), [&](Group& g) {
            AllReduceWorkspace w(g, test::capacity_of(host.spec));
            host.data[std::size_t(g.rank())].poison();
            w.run(host.calls[std::size_t(g.rank())]);
          }));
      run_gpus(device);
      for (std::size_t r = 0; r < host.data.size(); ++r)
        EXPECT_TRUE(test::same_bits(test::comparable(device.spec, device.data[r]),
                                    test::comparable(host.spec, host.data[r])))
            << where << " on rank " << r;
      const auto got = test::comparable(device.spec, device.data[0]);
      EXPECT_FALSE(test::same_bits(got, before)) << where << " changed nothing";
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace switchyard::comm
