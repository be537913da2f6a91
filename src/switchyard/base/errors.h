// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace switchyard {

/// Root of every exception that the library throws; catch this at an ABI boundary.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller's mistake. The text is one line: what failed, value and limit, why, what to do.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// A fault of ours: an invariant of the library does not hold.
class InternalError : public Error {
 public:
  using Error::Error;
};

/// The device or its driver refused or failed a call.
class DeviceError : public Error {
 public:
  using Error::Error;
};

}  // namespace switchyard
