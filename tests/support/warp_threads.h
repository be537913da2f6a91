// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <barrier>
#include <bit>
#include <cstdint>
#include <thread>
#include <vector>

namespace switchyard::test {

/// A GPU's warp as 32 threads, for device code that is a template of how lanes talk to each other.
/// One at a time.
class WarpThreads {
 public:
  /// Runs `f` in every lane, all together.
  template <class F>
  static void run(const F& f) {
    std::vector<std::jthread> threads;
    for (int lane = 0; lane < kLanes; ++lane)
      threads.emplace_back([lane, &f] {
        lane_ = lane;
        f();
      });
  }

  static int lane() { return lane_; }
  static float of_lane(float x, int lane) {
    return std::bit_cast<float>(exchange(std::bit_cast<std::uint32_t>(x))[std::size_t(lane)]);
  }
  static float of_neighbour(float x, int step) { return of_lane(x, lane_ ^ step); }
  static std::uint32_t most(std::uint32_t x) {
    const Values all = exchange(x);
    for (std::uint32_t other : all) x = other > x ? other : x;
    return x;
  }
  static std::uint32_t least(std::uint32_t x) {
    const Values all = exchange(x);
    for (std::uint32_t other : all) x = other < x ? other : x;
    return x;
  }
  static std::uint32_t lanes_of(bool yes) {
    const Values all = exchange(yes ? 1 : 0);
    std::uint32_t mask = 0;
    for (int lane = 0; lane < kLanes; ++lane) mask |= all[std::size_t(lane)] << lane;
    return mask;
  }
  static int lowest_lane(bool yes) { return std::countr_zero(lanes_of(yes)); }
  /// All lanes have come here.
  static void sync() { barrier_.arrive_and_wait(); }

 private:
  static constexpr int kLanes = 32;
  using Values = std::array<std::uint32_t, kLanes>;

  static Values exchange(std::uint32_t x) {
    values_[std::size_t(lane_)] = x;
    sync();
    const Values all = values_;
    sync();  // nobody writes before everybody has read
    return all;
  }

  static inline thread_local int lane_ = 0;
  static inline Values values_{};
  static inline std::barrier<> barrier_{kLanes};
};

}  // namespace switchyard::test
