// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "switchyard/base/device_memory.h"
#include "switchyard/base/errors.h"

namespace switchyard::test {

/// A copy of a host vector on the device.
template <class T>
struct OnDevice {
  explicit OnDevice(const std::vector<T>& host) : memory(host.size() * sizeof(T)) {
    memory.upload(host.data());
  }
  T* data() const { return memory.size() == 0 ? nullptr : static_cast<T*>(memory.data()); }
  std::vector<T> get() const {
    std::vector<T> host(memory.size() / sizeof(T));
    memory.download(host.data());
    return host;
  }
  DeviceMemory memory;
};

/// Skips with the device's own words where there is no GPU.
class NeedsGpu : public testing::Test {
 protected:
  void SetUp() override {
    try {
      DeviceMemory(1);
    } catch (const DeviceError& e) {
      GTEST_SKIP() << "needs a CUDA device: " << e.what();
    }
  }
};

}  // namespace switchyard::test
