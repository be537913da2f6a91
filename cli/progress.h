// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace switchyard::cli {

/// A bar on stderr for long work; a line every ten seconds when stderr is no terminal.
class ProgressBar {
 public:
  /// `label` says what is being done.
  explicit ProgressBar(std::string label);
  /// Wipes the bar, so that whatever is printed next starts on a clean line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// What the library calls. Valid as long as the bar.
  std::function<void(std::int64_t done, std::int64_t total)> callback();
  /// Wipes the bar until the next call.
  void wipe();

 private:
  void draw(std::int64_t done, std::int64_t total);
  void say(std::int64_t done, std::int64_t total);

  std::string label_;
  std::chrono::steady_clock::time_point said_ = std::chrono::steady_clock::now();
  bool terminal_;
  bool drawn_ = false;
  int percent_ = -1;
};

/// One line on stderr that says what is being done; nothing at all when stderr is no terminal.
class StatusLine {
 public:
  StatusLine();
  /// Wipes the line.
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// What the library calls; empty when there is no terminal. Valid as long as this.
  std::function<void(const std::string& what)> callback();
  /// Wipes the line until the next call.
  void wipe();

 private:
  bool terminal_;
  bool drawn_ = false;
};

}  // namespace switchyard::cli
