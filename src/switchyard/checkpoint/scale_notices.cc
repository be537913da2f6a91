// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/scale_notices.h"

#include "switchyard/base/text.h"

namespace switchyard::checkpoint {
namespace {

/// An input scale of this much quantises every activation below some thousands to 0, whatever the
/// format; calibrated ones are the largest activation divided by 448 or more.
constexpr float kDeafening = 0x1p20f;

template <class Visit>
void each_matrix(const std::vector<ExpertSources>& experts, Visit visit) {
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const ExpertSources& x = experts[e];
    for (const WeightSource* w : {x.gate ? &*x.gate : nullptr, &x.up, &x.down})
      if (w != nullptr) visit(e, *w);
  }
}

struct Kind {
  std::string first;
  std::int64_t more = 0;

  void add(std::string text) { first.empty() ? void(first = std::move(text)) : void(++more); }
  void note(std::vector<std::string>& notices) const {
    if (first.empty()) return;
    notices.push_back(more == 0 ? first : cat(first, " (and ", more, " more such scales)"));
  }
};

std::string where(std::size_t expert, const std::string& tensor) {
  return cat("expert ", expert, ", tensor '", tensor, "'");
}

}  // namespace

void note_scales(const std::vector<ExpertSources>& experts, std::vector<std::string>& notices) {
  Kind silent, deaf;
  each_matrix(experts, [&](std::size_t e, const WeightSource& w) {
    if (w.layout.global_scale && w.global_scale == 0)
      silent.add(
          cat(where(e, w.global_name),
              ": a global scale of 0 makes every weight of the matrix 0, whatever its code"));
    if (w.input_scale && *w.input_scale >= kDeafening)
      deaf.add(cat(where(e, w.input_name), ": an input scale of ", *w.input_scale,
                   " quantises common activations to 0; calibrate the model again"));
  });
  silent.note(notices);
  deaf.note(notices);
}

std::string largest_scale_text(const std::vector<ExpertSources>& experts) {
  std::string out;
  double largest = -1;
  each_matrix(experts, [&](std::size_t e, const WeightSource& w) {
    const ScaleStats s = scan_scales(w);
    const double scale = s.max * double(w.global_scale);
    if (s.count == 0 || scale <= largest) return;
    largest = scale;
    out = cat("the largest scale is ", scale, ", of ", where(e, w.scale_name));
  });
  return out;
}

}  // namespace switchyard::checkpoint
