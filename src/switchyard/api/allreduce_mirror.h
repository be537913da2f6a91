// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "switchyard/base/device_memory.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm.h"

namespace switchyard::api {

/// A fused all-reduce's tensors on the current GPU, beside those of a call in host memory: for
/// benchmarks and tests.
class AllReduceMirror {
 public:
  /// Allocates all tensors of `host` and uploads its inputs; the outputs hold what the host's do.
  /// `host` and its tensors must outlive this. Errors: DeviceError.
  explicit AllReduceMirror(const ops::AllReduceCall& host);

  /// The call with this GPU's addresses.
  const ops::AllReduceCall& call() const { return device_; }
  /// Uploads the host's inputs and outputs again.
  void upload();
  /// Waits for the GPU and copies the outputs to the host's.
  void download() const;

 private:
  struct Tensor {
    std::unique_ptr<DeviceMemory> memory;
    void* host = nullptr;
    bool output = false;
  };
  template <class T>
  T* mirror(T* host, std::int64_t bytes, bool output = false);
  void mirror_source(const ops::AllReduceCall& host);
  void mirror_norm(const ops::NormArgs& host);

  ops::AllReduceCall device_;
  std::vector<Tensor> tensors_;
};

}  // namespace switchyard::api
