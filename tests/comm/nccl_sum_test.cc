// SPDX-License-Identifier: Apache-2.0
// The ranks of a benchmark's NCCL communicator over a library of the test's own, which fails on
// one rank: all ranks end with that rank's text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/comm/nccl_library.h"
#include "tests/comm/thread_ranks.h"
#include "tests/fake_nccl/fake_nccl.h"

namespace switchyard::comm {
namespace {

using testing::HasSubstr;

/// What each of three ranks says of a communicator that rank `failing` is refused; -1: none is.
std::vector<std::string> texts(int failing) {
  fake_nccl_refuse(failing);
  const test::Outcomes outcomes = test::on_thread_ranks(3, test::short_deadlines(), [](Group& g) {
    NcclSum sum(g);
    EXPECT_EQ(sum.version(), "NCCL 9.8.7");
    float x = float(g.rank() + 1);
    sum.all_reduce(&x, &x, 1, Dtype::kF32, {});
  });
  std::vector<std::string> out;
  for (const std::exception_ptr& o : outcomes) out.push_back(test::text_of<DeviceError>(o));
  return out;
}

TEST(NcclSum, AllRanksEndWithTheTextOfTheOneThatIsRefused) {
  for (int failing : {0, 2}) {
    const int before = fake_nccl_alive();
    for (const std::string& text : texts(failing)) {
      EXPECT_THAT(text, HasSubstr("rank " + std::to_string(failing)));
      EXPECT_THAT(text, HasSubstr("creation of a communicator failed: the test refuses"));
    }
    EXPECT_EQ(fake_nccl_alive(), before) << "the other ranks' communicators are given back";
  }
  EXPECT_THAT(texts(-1), testing::Each(""));
}

}  // namespace
}  // namespace switchyard::comm
