// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/errors.h"
#include "switchyard/base/home_gpu.h"

namespace switchyard {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError("GPU: this build has no CUDA; configure with -DSWITCHYARD_CUDA=ON");
}

}  // namespace

HomeGpu::HomeGpu() { refuse(); }
HomeGpu::Scope::Scope(const HomeGpu&) { refuse(); }
HomeGpu::Scope::~Scope() = default;

}  // namespace switchyard
