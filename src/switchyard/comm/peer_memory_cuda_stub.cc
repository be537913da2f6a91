// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/errors.h"
#include "switchyard/comm/peer_memory.h"

namespace switchyard::comm {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError("peer memory: this build has no CUDA; configure with -DSWITCHYARD_CUDA=ON");
}

}  // namespace

void use_gpu(int) { refuse(); }
void wait_for(Stream) { refuse(); }
bool is_done(Stream) { refuse(); }
std::size_t free_gpu_bytes() { refuse(); }

HostWords::HostWords(std::size_t) { refuse(); }
HostWords::~HostWords() = default;

PeerMemory::PeerMemory(Group& group, std::size_t bytes) : group_(group), bytes_(bytes) { refuse(); }
PeerMemory::~PeerMemory() = default;

}  // namespace switchyard::comm
