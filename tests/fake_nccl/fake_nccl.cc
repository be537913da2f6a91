// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_nccl/fake_nccl.h"

#include <atomic>
#include <cstddef>

namespace {
std::atomic<int> refused = -1, alive = 0;
}  // namespace

#pragma GCC visibility push(default)
extern "C" {

struct FakeId {
  char bytes[128];
};

void fake_nccl_refuse(int rank) { refused = rank; }
int fake_nccl_alive() { return alive; }

int ncclGetVersion(int* version) {
  *version = 90807;
  return 0;
}
int ncclGetUniqueId(FakeId*) { return 0; }
int ncclCommInitRank(void** communicator, int, FakeId, int rank) {
  if (rank == refused) return 1;
  ++alive;
  *communicator = &alive;
  return 0;
}
int ncclAllReduce(const void*, void*, std::size_t, int, int, void*, void*) { return 0; }
int ncclCommDestroy(void*) {
  --alive;
  return 0;
}
const char* ncclGetErrorString(int) { return "the test refuses"; }
}
#pragma GCC visibility pop
