// SPDX-License-Identifier: Apache-2.0
#include "switchyard/resolve/backends.h"

#include <array>

#include "switchyard/base/nearest.h"

namespace switchyard::resolve {
namespace {

enum class Kind { kDevice, kOpen, kRetired, kOracle };

struct Word {
  std::string_view word;
  Kind kind;
  Device device = Device::kCpu;
  std::string_view advice{};
};

constexpr std::array kWords = {
    Word{"cpu", Kind::kDevice, Device::kCpu},
    Word{"cuda", Kind::kDevice, Device::kCuda},
    Word{"auto", Kind::kOpen},
    Word{"cutlass", Kind::kDevice, Device::kCuda},
    Word{"trtllm", Kind::kDevice, Device::kCuda},
    Word{"cutedsl", Kind::kDevice, Device::kCuda},
    Word{"cutedsl_fc12", Kind::kDevice, Device::kCuda},
    Word{"deepgemm", Kind::kDevice, Device::kCuda},
    Word{"densegemm", Kind::kDevice, Device::kCuda},
    Word{"marlin", Kind::kDevice, Device::kCuda},
    Word{"triton", Kind::kDevice, Device::kCuda},
    Word{"megamoe_deepgemm", Kind::kDevice, Device::kCuda},
    Word{"megamoe_cutedsl", Kind::kDevice, Device::kCuda},
    Word{"wideep", Kind::kRetired, Device::kCuda,
         "wide expert parallelism is a deployment here, not a backend; ask for parallel dep and ep "
         "ranks"},
    Word{"flashinfer", Kind::kRetired, Device::kCuda,
         "the one native leaf of the format always runs; drop the word"},
    Word{"vanilla", Kind::kOracle, Device::kCpu,
         "the reference checks leaves and never stands in for one; use verify, or drop the word"},
};

}  // namespace

Preference to_preference(std::string_view word) {
  std::string folded = normalise_word(word);
  for (const Word& row : kWords) {
    if (row.word != folded) continue;
    Preference out;
    if (row.kind == Kind::kDevice) out.device = row.device;
    if (row.kind == Kind::kRetired)
      out.rejection = {std::string(word), Reject::kBackendDeprecated,
                       cat("backend ", word, " is retired; ", row.advice)};
    if (row.kind == Kind::kOracle)
      out.rejection = {std::string(word), Reject::kNotAnImpl,
                       cat("backend ", word, " is no leaf; ", row.advice)};
    out.final = row.kind == Kind::kOracle;
    return out;
  }
  throw UsageError(cat("preference '", word, "' is neither a device nor a backend word; ",
                       suggest(folded, preference_words())));
}

std::vector<std::string> preference_words() {
  std::vector<std::string> out;
  for (const Word& row : kWords) out.emplace_back(row.word);
  return out;
}

}  // namespace switchyard::resolve
