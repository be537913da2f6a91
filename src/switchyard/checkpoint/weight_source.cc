// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/weight_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/base/dtype.h"
#include "switchyard/formats/e4m3.h"

namespace switchyard::checkpoint {

using formats::ScaleType;

namespace {

constexpr std::int64_t kTile = 64;  // a transposed walk stays within a few cache lines per row

/// Calls visit(source unit, index of the unit in row-major order), tile by tile.
template <class Visit>
void walk(const Plane& p, Visit visit) {
  bool dense_rows = p.col_stride == p.unit_bytes;
  std::int64_t step_r = dense_rows ? 1 : kTile,
               step_c = dense_rows ? std::max<std::int64_t>(p.cols, 1) : kTile;
  for (std::int64_t r0 = 0; r0 < p.rows; r0 += step_r)
    for (std::int64_t c0 = 0; c0 < p.cols; c0 += step_c)
      for (std::int64_t r = r0; r < std::min(r0 + step_r, p.rows); ++r)
        for (std::int64_t c = c0; c < std::min(c0 + step_c, p.cols); ++c)
          visit(p.base + r * p.row_stride + c * p.col_stride, r * p.cols + c);
}

template <int N>
void gather_units(const Plane& p, std::byte* out) {
  walk(p, [out](const std::byte* from, std::int64_t i) { std::memcpy(out + i * N, from, N); });
}

void gather(const Plane& p, std::byte* out) {
  if (p.col_stride == p.unit_bytes) {
    for (std::int64_t r = 0; r < p.rows; ++r)
      std::memcpy(out + r * p.cols * p.unit_bytes, p.base + r * p.row_stride,
                  std::size_t(p.cols * p.unit_bytes));
  } else if (p.unit_bytes == 1) {
    gather_units<1>(p, out);
  } else if (p.unit_bytes == 2) {
    gather_units<2>(p, out);
  } else {
    gather_units<4>(p, out);
  }
}

void round_to_bf16(const Plane& p, std::byte* out) {
  walk(p, [out](const std::byte* from, std::int64_t i) {
    std::uint16_t bits = float_to_bf16(load_float(TensorType::kF32, from, 0));
    std::memcpy(out + i * 2, &bits, 2);
  });
}

void widen_to_f32(const Plane& p, std::byte* out) {
  walk(p, [&](const std::byte* from, std::int64_t i) {
    float value = load_float(p.type, from, 0);
    std::memcpy(out + i * 4, &value, 4);
  });
}

/// Copied bytes and the mapping that the borrowed ones need; a Matrix holds it as one pointer.
struct Holder {
  std::vector<std::byte> copied;
  std::shared_ptr<const void> owner;
};

/// How a plane becomes canonical bytes.
struct Step {
  const Plane* plane = nullptr;
  void (*write)(const Plane&, std::byte*) = nullptr;  // null: borrow
  std::size_t bytes = 0;
};

Step code_step(const WeightSource& w) {
  const Plane& p = w.codes;
  if (w.layout.element == formats::Element::kBf16 && p.type == TensorType::kF32)
    return {&p, round_to_bf16, std::size_t(p.rows * p.cols * 2)};
  return {&p, p.borrowable() ? nullptr : gather, std::size_t(p.bytes())};
}

Step scale_step(const WeightSource& w) {
  const Plane& p = w.scales;
  if (w.layout.scale == ScaleType::kF32 && p.type != TensorType::kF32)
    return {&p, widen_to_f32, std::size_t(p.rows * p.cols * 4)};
  return {&p, p.borrowable() ? nullptr : gather, std::size_t(p.bytes())};
}

std::span<const std::byte> place(const Step& step, std::byte*& free) {
  if (!step.write) return {step.plane->base, step.bytes};
  step.write(*step.plane, free);
  std::span<const std::byte> out{free, step.bytes};
  free += (step.bytes + 15) / 16 * 16;
  return out;
}

void count_value(float value, std::int64_t times, ScaleStats& s) {
  if (times == 0) return;
  s.count += times;
  if (!std::isfinite(value) || std::signbit(value)) {
    if (s.bad == 0) s.first_bad = value;
    s.bad += times;
    return;
  }
  if (s.count - times - s.bad == 0) s.min = s.max = value;
  s.min = std::min(s.min, double(value));
  s.max = std::max(s.max, double(value));
  if (value == 0) s.zeros += times;
}

}  // namespace

bool Plane::borrowable() const {
  bool dense = col_stride == unit_bytes && (rows <= 1 || row_stride == cols * unit_bytes);
  return dense && reinterpret_cast<std::uintptr_t>(base) % std::uintptr_t(unit_bytes) == 0;
}

Plane dense_plane(const Tensor& t, std::int64_t offset, std::int64_t rows, std::int64_t cols) {
  int unit = std::max(1, bits_of(t.type) / 8);
  return {.base = t.bytes.data() + offset,
          .type = t.type,
          .rows = rows,
          .cols = cols,
          .row_stride = cols * unit,
          .col_stride = unit,
          .unit_bytes = unit};
}

formats::Matrix WeightSource::read(const std::shared_ptr<const void>& owner) const {
  Step code = code_step(*this), scale = scale_step(*this);
  auto holder = std::make_shared<Holder>();
  holder->owner = owner;
  std::size_t code_room = code.write ? (code.bytes + 15) / 16 * 16 : 0;
  holder->copied.resize(code_room + (scale.write ? scale.bytes : 0));
  std::byte* free = holder->copied.data();
  formats::Matrix m;
  m.layout = layout;
  m.rows = rows;
  m.cols = cols;
  m.codes = place(code, free);
  if (layout.scale != ScaleType::kNone) m.scales = place(scale, free);
  m.global_scale = global_scale;
  m.input_scale = input_scale;
  m.storage = std::move(holder);
  return m;
}

std::vector<float> BiasSource::read() const {
  std::vector<float> out;
  out.reserve(std::size_t(count));
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(base ? load_float(type, base, i * step) : 0.0f);
  return out;
}

ExpertWeights ExpertSources::read(const std::shared_ptr<const void>& owner) const {
  ExpertWeights out;
  if (gate) out.gate = gate->read(owner);
  out.up = up.read(owner);
  out.down = down.read(owner);
  out.gate_bias = gate_bias.read();
  out.up_bias = up_bias.read();
  out.down_bias = down_bias.read();
  return out;
}

void ScaleStats::merge(const ScaleStats& other) {
  std::int64_t mine = count - bad, theirs = other.count - other.bad;
  if (theirs > 0) {
    min = mine > 0 ? std::min(min, other.min) : other.min;
    max = mine > 0 ? std::max(max, other.max) : other.max;
  }
  if (bad == 0) first_bad = other.first_bad;
  count += other.count;
  zeros += other.zeros;
  bad += other.bad;
}

ScaleStats scan_scales(const WeightSource& w) {
  ScaleStats out;
  if (w.layout.scale == ScaleType::kNone) return out;
  if (w.scales.unit_bytes > 1) {
    walk(w.scales, [&](const std::byte* from, std::int64_t) {
      count_value(load_float(w.scales.type, from, 0), 1, out);
    });
    return out;
  }
  std::array<std::int64_t, 256> seen{};  // one pass over bytes, then 256 values
  walk(w.scales, [&](const std::byte* from, std::int64_t) { ++seen[std::size_t(*from)]; });
  for (int code = 0; code < 256; ++code) {
    auto byte = std::byte(code);
    bool e4m3 = w.layout.scale == ScaleType::kE4m3;
    count_value(
        e4m3 ? formats::decode_e4m3(std::uint8_t(code)) : load_float(TensorType::kF8E8m0, &byte, 0),
        seen[std::size_t(code)], out);
  }
  return out;
}

}  // namespace switchyard::checkpoint
