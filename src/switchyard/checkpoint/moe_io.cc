// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/moe_io.h"

#include <cmath>
#include <limits>

#include "switchyard/base/check.h"

namespace switchyard::checkpoint {
namespace {

/// "layer3." when the file speaks of that layer by name, else "".
std::string prefix_of(const SafetensorsFile& file, std::int64_t layer) {
  std::string prefix = cat("layer", layer, ".");
  auto it = file.tensors().lower_bound(prefix);
  return it != file.tensors().end() && it->first.starts_with(prefix) ? prefix : "";
}

std::vector<float> read_rows(const SafetensorsFile& file, const std::string& name,
                             std::int64_t layer, std::int64_t hidden, std::int64_t& tokens) {
  const Tensor* t = file.find(name);
  require(t != nullptr, file.path(), ": holds neither '", name, "' nor its 'layer", layer,
          ".' spelling; name a file made for this layer");
  bool fits =
      t->shape.size() == 2 && t->shape[1] == hidden && (tokens < 0 || t->shape[0] == tokens);
  require(fits, file.path(), ": tensor '", name, "' has shape ", show_shape(t->shape),
          ", must be [", tokens < 0 ? "tokens" : cat(tokens), ", ", hidden,
          "]; the file belongs to another layer");
  tokens = t->shape[0];
  std::string what = cat(file.path(), ": tensor '", name, "'");
  std::vector<float> out = read_floats(*t, what);
  for (std::size_t i = 0; i < out.size(); ++i)
    require(std::isfinite(out[i]), what, ": element ", i, " is ", out[i],
            ", must be finite; nothing can be compared with it");
  return out;
}

}  // namespace

std::vector<float> read_hidden_states(const SafetensorsFile& file, std::int64_t layer,
                                      std::int64_t hidden) {
  std::int64_t tokens = -1;
  return read_rows(file, prefix_of(file, layer) + "hidden_states", layer, hidden, tokens);
}

MoeIo read_moe_io(const SafetensorsFile& file, std::int64_t layer, std::int64_t hidden) {
  std::string prefix = prefix_of(file, layer);
  MoeIo out;
  out.hidden = hidden;
  out.tokens = -1;
  out.hidden_states = read_rows(file, prefix + "hidden_states", layer, hidden, out.tokens);
  out.output = read_rows(file, prefix + "output", layer, hidden, out.tokens);
  const Tensor* ids = file.find(prefix + "token_ids");
  if (!ids) return out;
  std::string what = cat(file.path(), ": tensor '", prefix, "token_ids'");
  require(ids->shape == std::vector<std::int64_t>{out.tokens}, what, " has shape ",
          show_shape(ids->shape), ", must be [", out.tokens, "] like hidden_states");
  out.token_ids = read_ids(*ids, std::numeric_limits<std::int32_t>::max(), what);
  return out;
}

}  // namespace switchyard::checkpoint
