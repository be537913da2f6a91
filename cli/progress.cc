// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace switchyard::cli {
namespace {

constexpr int kWidth = 40;
constexpr std::chrono::seconds kInterval{10};

}  // namespace

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() { wipe(); }

std::function<void(std::int64_t, std::int64_t)> ProgressBar::callback() {
  if (!terminal_) return [this](std::int64_t done, std::int64_t total) { say(done, total); };
  return [this](std::int64_t done, std::int64_t total) { draw(done, total); };
}

void ProgressBar::say(std::int64_t done, std::int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (now - said_ < kInterval) return;
  said_ = now;
  std::fprintf(stderr, "%s: %lld of %lld\n", label_.c_str(), static_cast<long long>(done),
               static_cast<long long>(total));
}

void ProgressBar::draw(std::int64_t done, std::int64_t total) {
  int percent = total > 0 ? int(done * 100 / total) : 100;
  if (percent == percent_) return;
  percent_ = percent;
  drawn_ = true;
  int filled = percent * kWidth / 100;
  std::string bar = std::string(std::size_t(filled), '#') + std::string(kWidth - filled, '.');
  std::fprintf(stderr, "\r%s [%s] %3d%%", label_.c_str(), bar.c_str(), percent);
  std::fflush(stderr);
}

void ProgressBar::wipe() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
  percent_ = -1;
}

StatusLine::StatusLine() : terminal_(isatty(STDERR_FILENO) == 1) {}

StatusLine::~StatusLine() { wipe(); }

std::function<void(const std::string&)> StatusLine::callback() {
  if (!terminal_) return {};
  return [this](const std::string& what) {
    wipe();
    std::fputs(what.c_str(), stderr);
    std::fflush(stderr);
    drawn_ = true;
  };
}

void StatusLine::wipe() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace switchyard::cli
