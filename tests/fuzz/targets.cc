// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <stdexcept>

#include "switchyard/base/errors.h"
#include "switchyard/base/text.h"
#include "tests/fuzz/target.h"
#include "tests/meter/allocation_meter.h"

namespace switchyard::fuzz {
namespace {

constexpr std::array kTargets = {&kSafetensors, &kIndex, &kConfig,
                                 &kCheckpoint,  &kLoads, &kPlacement};

// A parsed JSON value takes tens of times its text; a declared layer or expert that has no tensor
// costs its line of findings, of which the vocabulary's own limits bound the number.
constexpr std::size_t kBytesAnyway = 16u << 20, kBytesPerByte = 256;
constexpr std::size_t kMaxMessage = 4096;

std::string fault_of_message(const std::string& text) {
  if (text.empty()) return "the UsageError has no text";
  if (text.size() > kMaxMessage) return cat("the UsageError has ", text.size(), " characters");
  for (char c : text)
    if (static_cast<unsigned char>(c) < ' ') return "the UsageError holds a control character";
  return "";
}

}  // namespace

std::span<const Target* const> targets() { return kTargets; }

const Target& find_target(std::string_view name) {
  for (const Target* t : kTargets)
    if (t->name == name) return *t;
  throw std::invalid_argument(cat("no fuzz target is called '", name, "'"));
}

Outcome run_target(const Target& target, std::string_view input) {
  Outcome out;
  test::AllocationMeter meter;
  try {
    target.run(input);
    out.accepted = true;
  } catch (const UsageError& e) {
    out.message = e.what();
    out.fault = fault_of_message(out.message);
  } catch (const std::exception& e) {
    out.fault = cat("something else than a UsageError left: ", e.what());
  }
  const std::size_t limit = kBytesAnyway + kBytesPerByte * input.size();
  if (meter.peak_bytes() > limit)
    out.fault = cat("held ", meter.peak_bytes(), " bytes of heap for ", input.size(),
                    " bytes of input, the limit is ", limit);
  return out;
}

void promise(bool kept, const char* what) {
  if (!kept) throw std::logic_error(what);
}

}  // namespace switchyard::fuzz
