// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/payload.h"

#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/ops/quantize/quantize.h"

namespace switchyard::layer {
namespace {

std::string_view why_as_it_is(const ops::FfnShape& s, std::string_view kept) {
  if (s.weight_on_input)
    return "routing weights multiply the rows in front of the quantiser, each expert's its own";
  if (!ops::quantises_ahead(s)) return "the experts read unquantised activations";
  return kept;
}

}  // namespace

std::string Payload::text() const {
  return std::string(quantised() ? to_string(quant) : to_string(dtype));
}

Payload payload_of(const Layer& part, std::string_view kept) {
  const ops::FfnShape& s = part.routed().shape;
  Payload p;
  // Latent rows come out of their projection in fp32.
  p.dtype = part.latent() != nullptr ? Dtype::kF32 : part.options().dtype;
  p.width = s.hidden;
  p.why_not = why_as_it_is(s, kept);
  if (p.quantised()) p.quant = s.quant;
  p.row_bytes = p.quantised() ? ops::activation_code_bytes(s.quant, p.width)
                              : p.width * std::int64_t(size_of(p.dtype));
  p.scale_bytes = p.quantised() ? ops::activation_scale_bytes(s.quant, p.width) : 0;
  return p;
}

void encode_rows(const EncodeRowsArgs& a) {
  const Payload& p = *a.payload;
  a.pool->for_each(a.rows, [&](std::int64_t t, int member) {
    const std::byte* x = static_cast<const std::byte*>(a.x) + t * a.x_stride;
    std::byte* out = a.codes + t * a.code_stride;
    if (!p.quantised()) {
      std::memcpy(out, x, std::size_t(p.row_bytes));
      return;
    }
    float* row = a.stage.data() + member * p.width;
    for (std::int64_t h = 0; h < p.width; ++h) row[h] = load_element(p.dtype, x, h);
    ops::quantize_rows_to_codes(
        {.kind = p.quant,
         .x = row,
         .rows = 1,
         .cols = p.width,
         .static_scale = a.static_scale,
         .codes = reinterpret_cast<std::uint8_t*>(out),
         .scales = p.scale_bytes == 0
                       ? nullptr
                       : reinterpret_cast<std::uint8_t*>(a.scales + t * a.scale_stride)});
  });
}

}  // namespace switchyard::layer
