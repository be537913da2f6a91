// SPDX-License-Identifier: Apache-2.0
// oneDNN: one prepacked matmul per expert and projection pair, timed alone. Gathering rows,
// activation and the weighted sum are left out, which flatters the peer.
#include <cmath>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <stdexcept>

#include "bench/peers/peer_traffic.h"

namespace {

using dnnl::memory;
using peers::Shape;
using Type = memory::data_type;
using Tag = memory::format_tag;

uint16_t to_bf16(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_bf16(uint16_t v) {
  const uint32_t bits = uint32_t(v) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

/// One projection of every expert: [rows, k] x [k, n].
class Projection {
 public:
  Projection(dnnl::engine& engine, dnnl::stream& stream, const Shape& s, int64_t k, int64_t n,
             std::mt19937& random)
      : engine_(engine), stream_(stream), int8_(s.type == "int8"), k_(k), n_(n) {
    const memory::desc packed = describe(32, Tag::any, {}).weights_desc();
    weights_desc_ = packed;
    for (int64_t e = 0; e < s.experts; ++e) {
      plain_ = peers::normals(k * n, int8_ ? 40.0f : 1 / std::sqrt(float(k)), random);
      std::vector<uint16_t> bf16;
      std::vector<int8_t> i8;
      for (float& v : plain_) {
        if (int8_) {
          i8.push_back(int8_t(std::lround(v)));
          v = i8.back();
        } else {
          bf16.push_back(to_bf16(v));
          v = from_bf16(bf16.back());
        }
      }
      memory from({{k, n}, weight_type(), Tag::ab}, engine,
                  int8_ ? (void*)i8.data() : (void*)bf16.data());
      weights_.emplace_back(packed, engine);
      dnnl::reorder(from, weights_.back()).execute(stream, from, weights_.back());
      stream.wait();
    }
  }

  size_t in_bytes() const { return int8_ ? 1 : 2; }
  /// Runs expert e on `rows` rows.
  void run(int64_t e, int64_t rows, const void* x, float* y) {
    auto found = calls_.find(rows);
    if (found == calls_.end())
      found = calls_.emplace(rows, dnnl::matmul(describe(rows, Tag::undef, weights_desc_))).first;
    memory in({{rows, k_}, int8_ ? Type::u8 : Type::bf16, Tag::ab}, engine_, const_cast<void*>(x));
    memory out({{rows, n_}, Type::f32, Tag::ab}, engine_, y);
    found->second.execute(
        stream_,
        {{DNNL_ARG_SRC, in}, {DNNL_ARG_WEIGHTS, weights_[size_t(e)]}, {DNNL_ARG_DST, out}});
  }

  /// rel L2 of the last expert's product of one row against plain loops.
  double error(const std::vector<uint8_t>& x) {
    std::vector<float> y(static_cast<size_t>(n_), std::nanf(""));
    run(int64_t(weights_.size()) - 1, 1, x.data(), y.data());
    stream_.wait();
    double difference = 0, size = 0;
    for (int64_t n = 0; n < n_; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < k_; ++k) {
        const double v = int8_ ? x[size_t(k)]
                               : from_bf16(uint16_t(x[size_t(2 * k)] | x[size_t(2 * k + 1)] << 8));
        sum += v * plain_[size_t(k * n_ + n)];
      }
      difference += (sum - y[size_t(n)]) * (sum - y[size_t(n)]);
      size += sum * sum;
    }
    return std::sqrt(difference / size);
  }

 private:
  Type weight_type() const { return int8_ ? Type::s8 : Type::bf16; }

  dnnl::matmul::primitive_desc describe(int64_t rows, Tag tag, const memory::desc& weights) const {
    const memory::desc x({rows, k_}, int8_ ? Type::u8 : Type::bf16, Tag::ab),
        y({rows, n_}, Type::f32, Tag::ab);
    const memory::desc w = tag == Tag::any ? memory::desc({k_, n_}, weight_type(), tag) : weights;
    return {dnnl::matmul::desc(x, w, y), engine_};
  }

  dnnl::engine& engine_;
  dnnl::stream& stream_;
  bool int8_;
  int64_t k_, n_;
  memory::desc weights_desc_;
  std::vector<memory> weights_;
  std::vector<float> plain_;  // of the last expert
  std::map<int64_t, dnnl::matmul> calls_;
};

std::vector<uint8_t> activations(bool int8, int64_t count, std::mt19937& random) {
  std::vector<uint8_t> out;
  for (float v : peers::normals(count, int8 ? 30.0f : 1.0f, random)) {
    if (int8) {
      out.push_back(uint8_t(std::clamp(std::lround(v) + 128, 0L, 255L)));
    } else {
      const uint16_t bits = to_bf16(v);
      out.push_back(uint8_t(bits));
      out.push_back(uint8_t(bits >> 8));
    }
  }
  return out;
}

int run(const Shape& s) {
  if (s.type != "bf16" && s.type != "int8")
    throw std::runtime_error("type " + s.type + " is neither bf16 nor int8");
  std::mt19937 random(1);
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  Projection fc1(engine, stream, s, s.hidden, 2 * s.inter, random),
      fc2(engine, stream, s, s.inter, s.hidden, random);
  const int64_t rows = s.tokens * s.top_k;
  const std::vector<uint8_t> x = activations(s.type == "int8", rows * s.hidden, random);
  const std::vector<uint8_t> inter = activations(s.type == "int8", rows * s.inter, random);
  std::vector<float> gate_up(size_t(rows * 2 * s.inter)), y(size_t(rows * s.hidden));
  const double error = std::max(fc1.error(x), fc2.error(inter));
  std::vector<int64_t> counts;
  const auto product = [&](const std::vector<int32_t>&) {
    int64_t at = 0;
    for (int64_t e = 0; e < s.experts; ++e) {
      const int64_t m = counts[size_t(e)];
      if (m == 0) continue;
      fc1.run(e, m, x.data() + size_t(at * s.hidden) * fc1.in_bytes(),
              gate_up.data() + at * 2 * s.inter);
      fc2.run(e, m, inter.data() + size_t(at * s.inter) * fc2.in_bytes(), y.data() + at * s.hidden);
      at += m;
    }
    stream.wait();
  };
  const auto prepare = [&](const std::vector<int32_t>& ids) {
    counts.assign(size_t(s.experts), 0);
    for (int32_t e : ids) ++counts[size_t(e)];
    product(ids);  // makes the primitives of heights not seen before
  };
  const std::vector<double> times = peers::time_calls(s, random, prepare, product);
  const dnnl_version_t* v = dnnl_version();
  peers::print_result(times,
                      "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." +
                          std::to_string(v->patch),
                      "matmuls alone", error);
  return error < 1e-2 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  return run(peers::read_shape(argc, argv));
} catch (const std::exception& e) {
  std::fprintf(stderr, "onednn_peer: %s\n", e.what());
  return 1;
}
