// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/tuning.h"

#include "switchyard/base/version.h"
#include "switchyard/resolve/probe_cuda.h"
#include "switchyard/tune/shipped.h"

namespace switchyard {

tune::TuningTable table_here(const Environment& env) {
  return {.build = env.build,
          .fingerprint = env.fingerprint(),
          .machine =
              tune::machine_of(env, env.num_gpus > 0 ? resolve::probe_gpus().name : std::string()),
          .entries = {}};
}

std::string shipped_notice(const Environment& env) {
  if (env.num_gpus == 0) return {};
  return tune::stale_shipped(tune::all_shipped(), resolve::probe_gpus().name, tile_kernels());
}

std::shared_ptr<const tune::TacticBook> tuned_choices(const Environment& env,
                                                      const std::string& path) {
  const tune::TuningTable here = table_here(env);
  auto book = std::make_shared<tune::TacticBook>();
  if (!path.empty()) {
    const tune::TuningTable table = tune::read_table(path);
    tune::require_made_for(table, here, path);
    book->add(table, TacticOrigin::kFile, path);
  }
  book->add(tune::shipped_table(here.machine), TacticOrigin::kShipped, "the shipped table");
  return book;
}

}  // namespace switchyard
