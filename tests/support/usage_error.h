// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "switchyard/base/errors.h"

namespace switchyard::test {

/// Text of the UsageError that `call` throws; "" when it throws nothing, and "(several lines)" for
/// a text that is not one line.
template <class F>
std::string usage_error_or_empty(F&& call) {
  try {
    call();
  } catch (const UsageError& e) {
    const std::string text = e.what();
    return text.find('\n') == std::string::npos ? text : "(several lines)";
  }
  return "";
}

/// Text of the UsageError that `call` throws; fails the test when it throws nothing, another kind,
/// an empty text or more than one line.
template <class F>
std::string usage_error_of(F&& call) {
  try {
    std::string text = usage_error_or_empty(call);
    EXPECT_NE(text, "") << "expected a UsageError with a text, got none";
    EXPECT_NE(text, "(several lines)");
    return text;
  } catch (const std::exception& e) {
    ADD_FAILURE() << "expected a UsageError, got: " << e.what();
    return e.what();
  }
}

}  // namespace switchyard::test
