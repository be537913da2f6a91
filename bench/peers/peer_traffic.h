// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every peer's program shares: the shape from the command line, seeded uniform routing, a
// cache that is read empty between calls, and one line of JSON.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace peers {

struct Shape {
  int64_t hidden = 0, inter = 0, experts = 0, top_k = 0, tokens = 0;
  int threads = 1;
  std::string type;
  double seconds = 1;
  int64_t flush_bytes = 0;
};

inline Shape read_shape(int argc, char** argv) {
  if (argc != 10) {
    std::fprintf(stderr,
                 "usage: %s HIDDEN INTER EXPERTS TOP_K TOKENS THREADS TYPE SECONDS FLUSH_BYTES\n",
                 argv[0]);
    std::exit(2);
  }
  const auto whole = [&](int i) { return std::strtoll(argv[i], nullptr, 10); };
  Shape s{whole(1),      whole(2), whole(3),           whole(4), whole(5),
          int(whole(6)), argv[7],  std::atof(argv[8]), whole(9)};
  if (s.hidden < 1 || s.inter < 1 || s.experts < s.top_k || s.top_k < 1 || s.tokens < 1 ||
      s.threads < 1) {
    std::fprintf(stderr, "%s: a size is below 1, or more experts are chosen than there are\n",
                 argv[0]);
    std::exit(2);
  }
  return s;
}

/// k distinct experts for each token, fresh for each call.
inline std::vector<int32_t> choose(const Shape& s, std::mt19937& random) {
  std::vector<int32_t> all(size_t(s.experts)), out;
  for (int64_t e = 0; e < s.experts; ++e) all[size_t(e)] = int32_t(e);
  for (int64_t t = 0; t < s.tokens; ++t)
    for (int64_t j = 0; j < s.top_k; ++j) {
      std::swap(all[size_t(j)], all[size_t(j + int64_t(random() % uint32_t(s.experts - j)))]);
      out.push_back(all[size_t(j)]);
    }
  return out;
}

/// About N(0, 1) times `size`.
inline std::vector<float> normals(int64_t count, float size, std::mt19937& random) {
  std::vector<float> out(static_cast<size_t>(count));
  for (float& v : out) {
    const uint32_t b = random();
    v = size * float(int(b & 255) + int(b >> 8 & 255) + int(b >> 16 & 255) + int(b >> 24) - 510) /
        147.8f;
  }
  return out;
}

/// Reads other memory with every thread.
class Flush {
 public:
  explicit Flush(const Shape& s) : threads_(s.threads), memory_(size_t(s.flush_bytes / 8), 1) {}
  void operator()() {
    std::vector<std::thread> team;
    std::vector<uint64_t> sums(static_cast<size_t>(threads_));
    for (int i = 0; i < threads_; ++i)
      team.emplace_back([&, i] {
        const size_t from = memory_.size() * size_t(i) / size_t(threads_);
        const size_t to = memory_.size() * size_t(i + 1) / size_t(threads_);
        for (size_t at = from; at < to; at += 8) sums[size_t(i)] += memory_[at];
      });
    for (std::thread& t : team) t.join();
    for (uint64_t sum : sums) keep_ = keep_ + sum;
  }

 private:
  int threads_;
  std::vector<uint64_t> memory_;
  volatile uint64_t keep_ = 0;
};

/// Times `call(ids)` with cold caches until the seconds are spent; `prepare(ids)` is not timed.
template <class Prepare, class Call>
std::vector<double> time_calls(const Shape& s, std::mt19937& random, Prepare&& prepare,
                               Call&& call) {
  using Clock = std::chrono::steady_clock;
  Flush flush(s);
  std::vector<double> times;
  const auto begin = Clock::now();
  for (int i = 0; i < 500; ++i) {
    const std::vector<int32_t> ids = choose(s, random);
    prepare(ids);
    flush();
    const auto start = Clock::now();
    call(ids);
    const auto stop = Clock::now();
    if (i > 0)
      times.push_back(
          std::chrono::duration<double, std::micro>(stop - start).count());  // the first is warm-up
    if (times.size() >= 5 && std::chrono::duration<double>(stop - begin).count() > s.seconds) break;
  }
  std::sort(times.begin(), times.end());
  return times;
}

inline void print_result(const std::vector<double>& times, const std::string& version,
                         const std::string& note, double error) {
  const auto at = [&](double share) {
    return times[std::min(times.size() - 1, size_t(share * double(times.size())))];
  };
  std::printf(
      "{\"p50\": %.2f, \"p90\": %.2f, \"min\": %.2f, \"samples\": %zu, \"version\": \"%s\", "
      "\"note\": \"%s\", "
      "\"rel_l2\": %.3e}\n",
      at(0.5), at(0.9), times.front(), times.size(), version.c_str(), note.c_str(), error);
}

}  // namespace peers
