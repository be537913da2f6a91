// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "switchyard/base/device.h"

namespace switchyard {

/// Owns a CUDA stream that waits for no other: for tests, judges and benchmarks; a forward runs on
/// its caller's.
///
/// Errors:  DeviceError when the device refuses, or when the build has no CUDA.
class DeviceStream {
 public:
  DeviceStream();
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  /// The stream as a forward takes it.
  Stream get() const { return {handle_}; }
  /// Waits until all work queued on it is done; throws what that work failed with.
  void wait() const;

 private:
  void* handle_ = nullptr;
};

/// Work recorded once and launched many times, timed on the device.
///
/// Errors:  DeviceError from each function.
class DeviceGraph {
 public:
  /// Records what `enqueue` puts on `stream`; nothing runs yet.
  DeviceGraph(const DeviceStream& stream, const std::function<void()>& enqueue);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  /// Runs it once and waits. Returns the device's time between its start and its end.
  /// Units: microseconds.
  double run();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

/// The device's time from the first to the last of what `enqueue` puts on `stream`, launched one by
/// one; waits for it.
///
/// Units:   microseconds.
/// Errors:  DeviceError when the device refuses, or when the build has no CUDA.
double eager_us(const DeviceStream& stream, const std::function<void()>& enqueue);

}  // namespace switchyard
