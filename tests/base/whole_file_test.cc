// SPDX-License-Identifier: Apache-2.0
// Files that are written whole: what stands beside them or at their path meanwhile is not lost.
#include "switchyard/base/whole_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "switchyard/base/check.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using test::slurp;
using test::TempDir;
using testing::HasSubstr;

const FileKind kNote = {"note", [](const std::string& path) {
                          require(slurp(path).starts_with("note"), path, ": says no note");
                        }};

std::string part_of(const std::string& path, int n) {
  return cat(path, ".part-", getpid(), n == 0 ? "" : cat("-", n));
}

std::size_t files_in(const TempDir& dir) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir.path()))
    ++count;
  return count;
}

void write_note(const std::string& path) {
  WholeFile file(path, kNote);
  file.out() << "note, new";
  file.commit();
}

// The name of the file beside it may be somebody's already, or lead elsewhere.
TEST(WholeFile, ABystanderKeepsItsNameAndContent) {
  const TempDir dir;
  const std::string path = dir.path() + "/x", elsewhere = dir.write("elsewhere", "not ours");
  dir.write("x.part-" + std::to_string(getpid()), "a bystander's");
  std::filesystem::create_symlink(elsewhere, part_of(path, 1));
  write_note(path);
  EXPECT_EQ(slurp(path), "note, new");
  EXPECT_EQ(slurp(part_of(path, 0)), "a bystander's");
  EXPECT_EQ(slurp(elsewhere), "not ours");
  EXPECT_TRUE(std::filesystem::is_symlink(part_of(path, 1)));
  EXPECT_EQ(files_in(dir), 4U) << "and nothing is left of what was written beside";
}

TEST(WholeFile, WithoutAFreeNameNothingIsWritten) {
  const TempDir dir;
  const std::string path = dir.path() + "/x";
  for (int n = 0; n < 100; ++n) dir.write(part_of("x", n), "taken");
  EXPECT_THAT(test::usage_error_of([&] { write_note(path); }), HasSubstr("cannot be written"));
  EXPECT_EQ(files_in(dir), 100U);
}

// What came to the path while the content was made is judged as what stood there before.
TEST(WholeFile, CommitReplacesNothingThatCameMeanwhile) {
  const TempDir dir;
  const std::string path = dir.path() + "/x", target = dir.write("target", "older");
  const auto refusal = [&](const std::function<void()>& meanwhile) {
    return test::usage_error_of([&] {
      WholeFile file(path, kNote);
      file.out() << "note, new";
      meanwhile();
      file.commit();
    });
  };
  EXPECT_THAT(refusal([&] { dir.write("x", "measured by hand"); }), HasSubstr("is no note"));
  EXPECT_EQ(slurp(path), "measured by hand");
  std::filesystem::remove(path);
  EXPECT_THAT(refusal([&] { std::filesystem::create_symlink(target, path); }),
              HasSubstr("it is a link"));
  EXPECT_EQ(slurp(target), "older");
  std::filesystem::remove(path);
  EXPECT_EQ(files_in(dir), 1U) << "what was refused is removed";
  dir.write("x", "note, old");
  WholeFile file(path, kNote);
  file.out() << "note, new";
  dir.write("x", "note of another run");
  file.commit();
  EXPECT_EQ(slurp(path), "note, new");
}

}  // namespace
}  // namespace switchyard
