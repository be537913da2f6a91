// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "switchyard/formats/matrix.h"

namespace switchyard::checkpoint {

/// How one module's weight is stored: which tensors replace it and what they mean.
enum class SchemeKind : std::uint8_t {
  kNone,
  kFp8Block,     // E4M3, one scale per 128 x 128
  kFp8Tensor,    // E4M3, one scale
  kFp8Channel,   // E4M3, one scale per output row
  kNvfp4,        // E2M1, one E4M3 scale per 16 and a global one
  kMxfp4,        // E2M1, one E8M0 scale per 32
  kMxfp4Blocks,  // the same as gpt-oss stacks it: *_blocks and *_scales
};

/// What the tensors of a quantised module are called behind "<module>."; "a|b" lists spellings.
struct SchemeNames {
  std::string_view codes = "weight", scale = {}, global = {}, input = {};
  bool divides = false;  // the global and the input scale divide (compressed-tensors)

  bool operator==(const SchemeNames&) const = default;
};

/// A module's final scheme.
struct Scheme {
  SchemeKind kind = SchemeKind::kNone;
  std::string_view format = "none";  // canonical format name
  formats::WeightLayout layout;      // kNone: the stored element decides between bf16 and fp16
  formats::ActivationQuant activation = formats::ActivationQuant::kNone;
  bool bf16_activations = false;  // declared weight-only in a format that quantises activations
  SchemeNames names = {};

  bool operator==(const Scheme&) const = default;
  /// True when activations use the checkpoint's static input_scale.
  bool needs_input_scale() const { return formats::is_static(activation); }
};

/// The schemes that declarations map to; names are ModelOpt's and Hugging Face's unless changed.
namespace schemes {

/// E4M3 with fp32 scales per 128 x 128; `ue8m0`: scales are powers of two, in the activations too.
Scheme fp8_block(bool ue8m0);
/// E4M3 with one fp32 scale.
Scheme fp8_tensor(formats::ActivationQuant activation);
/// E4M3 with one fp32 scale per output row.
Scheme fp8_channel(formats::ActivationQuant activation);
/// E2M1 with one E4M3 scale per 16 and a global one.
Scheme nvfp4(bool weight_only);
/// E2M1 with one E8M0 scale per 32, one pair of tensors per module.
Scheme mxfp4();
/// The same with MXFP8 activations.
Scheme mxfp4_mxfp8();
/// The same as gpt-oss stacks it.
Scheme mxfp4_blocks();

}  // namespace schemes
}  // namespace switchyard::checkpoint
