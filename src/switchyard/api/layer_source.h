// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "switchyard/api/checkpoint.h"
#include "switchyard/api/judge.h"
#include "switchyard/api/layer_builder.h"

namespace switchyard {

/// The layers of a preset or a checkpoint, each built anew for each format, on one rank.
class LayerSource {
 public:
  /// `command` names the caller in errors. Errors: UsageError for a source that contradicts itself
  /// or cannot be read.
  LayerSource(const RunOptions& options, const std::string& command);

  /// A layer that can be built.
  struct Entry {
    std::int64_t index, hidden;
  };
  /// Those that were asked for.
  const std::vector<Entry>& layers() const { return layers_; }
  /// Of the checkpoint as a whole.
  std::vector<std::string> notices() const;
  /// Builds one; an empty format leaves it as the options say.
  /// Errors: as MoeLayer::from_checkpoint().
  MoeLayer build(const Entry& entry, const std::string& format) const;
  /// What ranks build their parts from. Errors: as LayerBuilder::prepare().
  PreparedLayer prepare(const Entry& entry, const std::string& format) const;

 private:
  BuildOptions options_for(const Entry& entry, const std::string& format) const;

  RunOptions o_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<Entry> layers_;
};

}  // namespace switchyard
