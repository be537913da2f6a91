// SPDX-License-Identifier: Apache-2.0
// Replays every seed and every input that once was a fault, and mutations of them, through the
// entry functions that the fuzzer drives.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "switchyard/base/errors.h"
#include "switchyard/base/random.h"
#include "tests/fuzz/target.h"
#include "tests/meter/allocation_meter.h"
#include "tests/support/soak.h"

namespace switchyard::fuzz {
namespace {

namespace fs = std::filesystem;

const fs::path kCorpus = fs::path(SWITCHYARD_SOURCE_ROOT) / "tests/fuzz/corpus";

std::string content_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<fs::path> files_of(const Target& target) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(kCorpus / target.name)) out.push_back(entry);
  std::sort(out.begin(), out.end());
  return out;
}

class Corpus : public testing::TestWithParam<const Target*> {};

TEST_P(Corpus, KeepsThePromises) {
  std::size_t accepted = 0, refused = 0;
  for (const fs::path& path : files_of(*GetParam())) {
    Outcome outcome = run_target(*GetParam(), content_of(path));
    EXPECT_EQ(outcome.fault, "") << path;
    ++(outcome.accepted ? accepted : refused);
  }
  EXPECT_GE(accepted, 2u) << "a corpus whose every seed is refused tests the first check only";
  EXPECT_GE(refused, 1u);
}

TEST_P(Corpus, StaysSmall) {
  std::size_t bytes = 0, files = 0;
  for (const fs::path& path : files_of(*GetParam())) bytes += fs::file_size(path), ++files;
  EXPECT_LE(files, 60u);
  EXPECT_LE(bytes, 256u << 10) << "libFuzzer's own findings belong to build/fuzz, not here";
}

/// `text` with one part changed as the `i`th mutation says: cut off, flipped, doubled or removed.
std::string mutated(const std::string& text, const Random& random, std::uint64_t i) {
  if (text.empty()) return text;
  std::string out = text;
  std::size_t at = random.bits(4 * i) % text.size();
  std::size_t length = 1 + random.bits(4 * i + 1) % std::min<std::size_t>(text.size() - at, 24);
  std::uint64_t what = random.bits(4 * i + 2) % 4;
  if (what == 0) out.resize(at);
  if (what == 1) out[at] = char(random.bits(4 * i + 3));
  if (what == 2) out.insert(at, text.substr(at, length));
  if (what == 3) out.erase(at, length);
  return out;
}

TEST_P(Corpus, KeepsThePromisesWhenMutated) {
  const std::uint64_t count = test::subset_or_full<std::uint64_t>(40, 4000);
  std::uint64_t stream = 0;
  for (const fs::path& path : files_of(*GetParam())) {
    const std::string text = content_of(path);
    const Random random(20, stream++);
    for (std::uint64_t i = 0; i < count; ++i) {
      Outcome outcome = run_target(*GetParam(), mutated(text, random, i));
      ASSERT_EQ(outcome.fault, "") << path << ", mutation " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Corpus, testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST(FuzzTargets, EachHasACorpusAndEachCorpusATarget) {
  std::set<std::string> names, folders;
  for (const Target* t : targets()) names.emplace(t->name);
  for (const auto& entry : fs::directory_iterator(kCorpus)) {
    if (entry.is_directory()) folders.insert(entry.path().filename().string());
  }
  EXPECT_EQ(names, folders);
}

// The controls: what run_target() exists to see, it sees.
TEST(FuzzTargets, AFaultIsSeen) {
  const Target wrong_kind = {"", [](std::string_view) { throw InternalError("oh"); }};
  EXPECT_NE(run_target(wrong_kind, "x").fault, "");
  const Target two_lines = {"", [](std::string_view) { throw UsageError("one\ntwo"); }};
  EXPECT_NE(run_target(two_lines, "x").fault, "");
  const Target broken = {"", [](std::string_view) { promise(false, "broken"); }};
  EXPECT_NE(run_target(broken, "x").fault, "");
  const Target greedy = {"",
                         [](std::string_view) { std::string(100u << 20, 'x').shrink_to_fit(); }};
  EXPECT_NE(run_target(greedy, "x").fault, "");
  const Target fine = {"", [](std::string_view) { throw UsageError("one line"); }};
  EXPECT_EQ(run_target(fine, "x").fault, "");
}

TEST(FuzzTargets, TheMeterSeesThePeakAndNotTheSum) {
  test::AllocationMeter meter;
  for (int i = 0; i < 8; ++i) {
    std::vector<char> block(1 << 20, char(i));
    ASSERT_EQ(block.back(), char(i));
  }
  EXPECT_GE(meter.peak_bytes(), 1u << 20);
  EXPECT_LT(meter.peak_bytes(), 2u << 20);
}

}  // namespace
}  // namespace switchyard::fuzz
