// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>

#include "switchyard/base/check.h"
#include "switchyard/base/cuda_check.h"
#include "switchyard/comm/peer_memory.h"

namespace switchyard::comm {
namespace {

constexpr const char* kPhase = "creation of peer memory";
constexpr std::size_t kLineBytes = 64;

/// What a rank tells the others of its slice.
struct Card {
  std::int64_t process = 0;
  int gpu = 0;
  char bus[32] = {};  // names the GPU across processes, which may number them differently
  void* address = nullptr;
  cudaIpcMemHandle_t handle{};
};

Card card_of(const std::string& text) {
  Card card;
  ensure(text.size() == sizeof card, "a rank's card of ", text.size(), " bytes");
  std::memcpy(&card, text.data(), sizeof card);
  return card;
}

/// Lets the current GPU address `peer`.
void enable(int gpu, int peer) {
  if (gpu == peer) return;
  int able = 0;
  cuda_check(cudaDeviceCanAccessPeer(&able, gpu, peer), "peer memory: question for access");
  require(able != 0, "peer memory: GPU ", gpu, " cannot address GPU ", peer,
          "; the fused all-reduce needs GPUs that are linked by NVLink or PCIe peer access");
  const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled)
    static_cast<void>(cudaGetLastError());  // a later launch must not inherit it
  else
    cuda_check(status, "peer memory: peer access");
}

/// The ordinal here of the GPU that another process names. Errors: UsageError when it is not here.
int ordinal_of(const Card& card, int rank) {
  int ordinal = 0;
  if (cudaDeviceGetByPCIBusId(&ordinal, card.bus) == cudaSuccess) return ordinal;
  static_cast<void>(cudaGetLastError());
  throw UsageError(cat("peer memory: the GPU of rank ", rank, " (", card.bus,
                       ") is not visible to this process; make all GPUs of the group visible to "
                       "every process and choose among them by ordinal"));
}

}  // namespace

void use_gpu(int ordinal) { cuda_check(cudaSetDevice(ordinal), "choice of a GPU"); }

std::size_t free_gpu_bytes() {
  std::size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "question for free memory");
  return free;
}

void wait_for(Stream stream) {
  cuda_check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream.handle)),
             "wait for a stream's work");
}

bool is_done(Stream stream) {
  const cudaError_t status = cudaStreamQuery(static_cast<cudaStream_t>(stream.handle));
  if (status != cudaErrorNotReady) cuda_check(status, "work of a stream");
  return status == cudaSuccess;
}

HostWords::HostWords(std::size_t bytes) {
  cuda_check(cudaHostAlloc(&host_, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
             "host words: allocation");
  std::memset(host_, 0, bytes);
  const cudaError_t status = cudaHostGetDevicePointer(&device_, host_, 0);
  if (status != cudaSuccess) cudaFreeHost(host_);
  cuda_check(status, "host words: address on the GPU");
}
HostWords::~HostWords() { cudaFreeHost(host_); }

PeerMemory::PeerMemory(Group& group, std::size_t slice_bytes)
    : group_(group),
      bytes_(slice_bytes),
      slices_(std::size_t(group.size()), nullptr),
      opened_(std::size_t(group.size()), false) {
  Card mine{.process = getpid()};
  const auto me = std::size_t(group.rank());
  words_ = group.share(std::size_t(group.size()) * kLineBytes, kPhase);
  try {
    guarded(group, kPhase, [&] {
      cuda_check(cudaGetDevice(&gpu_), "peer memory: the current GPU");
      mine.gpu = gpu_;
      cuda_check(cudaDeviceGetPCIBusId(mine.bus, sizeof mine.bus, gpu_), "peer memory: bus id");
      void* memory = nullptr;
      const cudaError_t status = cudaMalloc(&memory, slice_bytes);
      if (status == cudaErrorMemoryAllocation) static_cast<void>(cudaGetLastError());
      require(status != cudaErrorMemoryAllocation, "peer memory: ", slice_bytes,
              " bytes are not free on GPU ", gpu_);
      cuda_check(status, "peer memory: allocation");
      slices_[me] = static_cast<std::byte*>(memory);
      mine.address = memory;
    });
    // A handle is asked for where it is needed only: ranks that are threads need none.
    const std::vector<std::string> processes = group.all_gather(cat(mine.process), kPhase);
    guarded(group, kPhase, [&] {
      for (const std::string& p : processes)
        if (p != processes[me])
          return cuda_check(cudaIpcGetMemHandle(&mine.handle, slices_[me]),
                            "peer memory: handle for other processes");
    });
    const std::vector<std::string> cards = group.all_gather(
        std::string_view(reinterpret_cast<const char*>(&mine), sizeof mine), kPhase);
    guarded(group, kPhase, [&] { open(cards); });
  } catch (...) {
    close_peers();
    cudaFree(slices_[me]);
    throw;
  }
}

void PeerMemory::open(const std::vector<std::string>& cards) {
  const Card mine = card_of(cards[std::size_t(group_.rank())]);
  std::map<std::string, int> ranks;  // of each GPU
  for (const std::string& text : cards)
    ranks_per_gpu_ = std::max(ranks_per_gpu_, ++ranks[card_of(text).bus]);
  for (std::size_t r = 0; r < cards.size(); ++r) {
    if (int(r) == group_.rank()) continue;
    const Card card = card_of(cards[r]);
    if (card.process == mine.process) {
      enable(gpu_, card.gpu);
      slices_[r] = static_cast<std::byte*>(card.address);
      continue;
    }
    enable(gpu_, ordinal_of(card, int(r)));
    void* memory = nullptr;
    cuda_check(cudaIpcOpenMemHandle(&memory, card.handle, cudaIpcMemLazyEnablePeerAccess),
               "peer memory: opening of another process's slice");
    slices_[r] = static_cast<std::byte*>(memory);
    opened_[r] = true;
  }
}

void PeerMemory::close_peers() noexcept {
  for (std::size_t r = 0; r < slices_.size(); ++r)
    if (opened_[r]) cudaIpcCloseMemHandle(slices_[r]);
}

Word& PeerMemory::let_go(int rank) const {
  return *reinterpret_cast<Word*>(words_.bytes.data() + std::size_t(rank) * kLineBytes);
}

// No barrier: ranks of an aborted group, which has none any more, must wait for one another too.
bool PeerMemory::all_let_go() noexcept {
  using std::chrono::milliseconds;
  constexpr milliseconds kAfterAbort{5000};
  const auto start = std::chrono::steady_clock::now();
  publish(let_go(group_.rank()), 1);
  for (int r = 0; r < group_.size(); ++r)
    while (let_go(r).load(std::memory_order_acquire) == 0) {
      const milliseconds serving = group_.deadlines().serving;
      const milliseconds budget = group_.aborted() ? std::min(serving, kAfterAbort) : serving;
      if (std::chrono::steady_clock::now() - start > budget) {
        group_.abort("a rank did not come to the release of peer memory");
        return false;
      }
      sleep_on(let_go(r), 0, milliseconds(1));
    }
  return true;
}

// What the own GPU has queued may still write into the peers' slices, and theirs into this one.
PeerMemory::~PeerMemory() {
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(gpu_);
  cudaDeviceSynchronize();
  close_peers();
  if (all_let_go()) cudaFree(slices_[std::size_t(group_.rank())]);
  cudaSetDevice(before);
}

}  // namespace switchyard::comm
