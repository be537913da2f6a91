// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace switchyard::cli {

/// How the command ends after an exception: its exit status and its line on stderr.
struct Failure {
  int status = 0;
  std::string text;
};

/// That of the exception which is being handled; inside a catch only.
Failure current_failure();

}  // namespace switchyard::cli
