// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace switchyard {

/// How the panels of a CPU run one call of grouped experts.
///
/// Units:   panels are of 16 output rows.
struct PanelTactic {
  std::int64_t fc1_panels = 8;  // of a task of FC1
  std::int64_t fc2_panels = 4;  // of a task of FC2
  std::int64_t cuts = 4;        // pieces of each thread's last task
  std::int64_t row_block = 64;  // of an expert's rows, those that FC1 takes together

  bool operator==(const PanelTactic&) const = default;
  /// Calls visit(name, member pointer) for each field, in the order in which they are written.
  template <class Visit>
  static void each(Visit&& visit) {
    visit("fc1_panels", &PanelTactic::fc1_panels);
    visit("fc2_panels", &PanelTactic::fc2_panels);
    visit("cuts", &PanelTactic::cuts);
    visit("row_block", &PanelTactic::row_block);
  }
};

/// How a call of a GPU's routed experts is routed, as a tactic writes it.
enum class TileRouting : std::int64_t {
  kPlanned = 0,  // in the launch that sorts and quantises, where that one serves the call
  kApart = 1     // in a launch of its own
};

/// How the tile kernels of a GPU run one call of grouped experts.
///
/// Units:   tokens that one tile of the GEMM takes; 0: as the launch chooses by the call's sizes.
///          routing: a TileRouting.
struct TileTactic {
  std::int64_t fc1_tile = 0;
  std::int64_t fc2_tile = 0;
  std::int64_t routing = 0;

  bool operator==(const TileTactic&) const = default;
  /// As PanelTactic::each().
  template <class Visit>
  static void each(Visit&& visit) {
    visit("fc1_tile", &TileTactic::fc1_tile);
    visit("fc2_tile", &TileTactic::fc2_tile);
    visit("routing", &TileTactic::routing);
  }
};

/// One of the ways to run a call. The choice changes no bit: K is cut alike in all of them.
using Tactic = std::variant<PanelTactic, TileTactic>;

/// "fc1_panels=8 fc2_panels=4 cuts=4 row_block=64".
std::string to_string(const Tactic& tactic);
/// A tactic of named numbers. Errors: UsageError, naming `where`, unless they are all the fields of
/// one kind of tactic, each once and not negative.
Tactic make_tactic(std::span<const std::pair<std::string, std::int64_t>> fields,
                   std::string_view where);
/// Inverse of to_string(). Errors: UsageError for any other text.
Tactic to_tactic(std::string_view text);

/// Who chose a tactic.
enum class TacticOrigin : std::uint8_t { kPlanner, kShipped, kFile, kReplay };

/// "planner", "shipped table", "file" or "replay".
std::string_view to_string(TacticOrigin origin);

/// A tactic and where it comes from.
struct TacticUse {
  Tactic tactic;
  TacticOrigin origin = TacticOrigin::kPlanner;

  bool operator==(const TacticUse&) const = default;
};

/// "fc1_tile=64 fc2_tile=64 (planner)".
std::string to_string(const TacticUse& use);

/// The bucket of a call's tokens, by which tactics are kept: the next power of two; 0 for none.
std::int64_t token_bucket(std::int64_t tokens);

/// What was chosen for the calls of one set of experts, by bucket. A bucket that nobody chose for
/// is the planner's, however near a chosen one is.
class TacticList {
 public:
  /// Adds a choice, unless the bucket has one. One of the planner's origin keeps it the planner's.
  void add(std::int64_t bucket, const TacticUse& use);
  /// The choice for a call; null: the planner's.
  const TacticUse* find(std::int64_t tokens) const;
  /// The buckets with a choice.
  std::size_t size() const { return entries_.size(); }

 private:
  std::vector<std::pair<std::int64_t, TacticUse>> entries_;
};

/// One of a forward's calls whose tactic is chosen, and what it is.
struct CallTactic {
  std::string_view call;  // "experts" or "shared expert"
  TacticUse use;

  bool operator==(const CallTactic&) const = default;
};

}  // namespace switchyard
