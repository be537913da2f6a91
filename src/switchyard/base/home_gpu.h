// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace switchyard {

/// The GPU that was current where this was built, for work that other threads enqueue on its
/// streams: a launch is refused while another GPU is the thread's current one.
///
/// Errors:  DeviceError when the device refuses, or when the build has no CUDA.
class HomeGpu {
 public:
  HomeGpu();

  /// Makes it the thread's current one for a scope.
  class Scope {
   public:
    /// Until the end of the scope; then what was current is so again.
    explicit Scope(const HomeGpu& home);
    ~Scope();  // NOLINT(performance-trivially-destructible): it is not where there is CUDA
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    [[maybe_unused]] int before_ = 0;  // CUDA
  };

 private:
  [[maybe_unused]] int ordinal_ = 0;  // CUDA
};

}  // namespace switchyard
