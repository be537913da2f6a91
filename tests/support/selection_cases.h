// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "switchyard/base/errors.h"
#include "switchyard/core/deployment.h"
#include "switchyard/core/problem.h"
#include "tests/support/usage_error.h"

namespace switchyard::test {

/// An environment without a machine behind it: every dependency present, no GPU.
Environment plain_environment();
/// The same with one GPU of architecture `sm`.
Environment gpu_environment(int sm);
/// A deployment of one rank on `device` in `env`.
Deployment deployment_on(Device device, Environment env = plain_environment());
/// A small complete problem of `format`, with distinct values in every field that has a free
/// choice.
Problem problem_of(std::string_view format);
/// Variations of `problem_of(format)` along every axis that a gate could read; each is complete.
struct ProblemCase {
  std::string name;
  Problem problem;
};
std::vector<ProblemCase> problem_axes(std::string_view format);
/// Variations of a deployment on `device`.
struct DeploymentCase {
  std::string name;
  Deployment deployment;
};
std::vector<DeploymentCase> deployment_axes(Device device, const Environment& env);

}  // namespace switchyard::test
