// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "switchyard/base/device_stream.h"
#include "tests/cases/leaf_case.h"
#include "tests/support/device.h"

namespace switchyard::test {

/// A call whose memory is the device's, as a program would make it.
struct DeviceCall {
  explicit DeviceCall(const Call& c)
      : hidden(c.hidden),
        out(std::vector<std::byte>(c.out.size(), std::byte(0xff))),
        workspace(std::vector<std::byte>(c.layer.workspace_bytes(c.tokens), std::byte(0xff))) {
    args.tokens = c.tokens;
    args.hidden = hidden.data();
    args.hidden_stride = args.out_stride = c.layer.problem().hidden;
    args.out = out.data();
    args.stream = stream.get();
    args.workspace = {workspace.data(), workspace.memory.size()};
  }

  /// Runs it on poisoned outputs.
  std::vector<std::byte> run(const layer::Layer& layer) {
    out.memory.upload(std::vector<std::byte>(out.memory.size(), std::byte(0xff)).data());
    layer.forward(args);
    stream.wait();
    return out.get();
  }

  DeviceStream stream;
  OnDevice<std::byte> hidden, out, workspace;
  ForwardArgs args;
};

}  // namespace switchyard::test
