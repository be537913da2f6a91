// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "switchyard/comm/exchange.h"
#include "switchyard/comm/factory.h"
#include "switchyard/comm/gathered.h"
#include "switchyard/comm/group.h"
#include "switchyard/comm/reduction.h"
#include "switchyard/comm/symmetric_memory.h"
#include "switchyard/layer/fused_end.h"
#include "switchyard/layer/mega_moe.h"

namespace switchyard::layer {

/// Ends of one kind that were built in one group, by what they were built for. They stay.
template <class End, class Key>
class EndPool {
 public:
  /// The end that every rank has for such a key, else what make() builds. Collective, in the same
  /// order on all ranks; keys may differ between them. Errors: as make(), and PeerError.
  template <class F>
  std::shared_ptr<End> get(comm::Group& group, const Key& key, F&& make) {
    const auto at =
        std::ranges::find_if(built_, [&](const Built& built) { return built.key == key; });
    // Ranks that found ends of different constructions would wait for each other for ever.
    const std::int64_t mine = at == built_.end() ? -1 : at->number;
    const auto all = comm::gathered(group, mine, "sharing of an exchange");
    if (mine >= 0 && std::ranges::count(all, mine) == std::ptrdiff_t(all.size())) return at->end;
    Built made{key, builds_++, std::forward<F>(make)()};
    std::shared_ptr<End> end = made.end;
    if (at == built_.end()) {
      built_.push_back(std::move(made));
    } else {
      *at = std::move(made);
    }
    return end;
  }

 private:
  struct Built {
    Key key;
    std::int64_t number;  // of its construction: the same on all ranks
    std::shared_ptr<End> end;
  };
  std::vector<Built> built_;
  std::int64_t builds_ = 0;
};

/// In which order the ranks call the layers that share ends. Their exchanges would pair calls of
/// unlike layers without noticing, so each rank shows which layer it calls.
class CallOrder {
 public:
  /// Collective. Errors: as SymmetricMemory.
  explicit CallOrder(comm::Group& group);
  /// A number for one more layer, the same on all ranks as they build in one order.
  std::int64_t add() { return layers_++; }
  /// In front of a call of layer `number`.
  void begin(std::int64_t number);
  /// Behind it, when every rank has come. Errors: UsageError with both sides.
  void compare() const;

 private:
  // No rank is more than a few calls ahead of another.
  static constexpr std::int64_t kSlots = 64;
  using Shown = std::atomic<std::uint64_t>;  // call's number << 32 | layer's
  Shown& shown(int rank, std::uint32_t call) const;

  comm::Group& group_;
  comm::SymmetricMemory memory_;
  std::int64_t layers_ = 0;
  std::uint32_t call_ = 0;
  std::uint64_t mine_ = 0;
};

/// What of a problem a fused end reads.
struct EndingKey {
  std::int64_t hidden = 0, top_k = 0, zero_experts = 0, latent = 0;
  WeightPlacement placement = WeightPlacement::kOutput;
  CombinePrecision combine = CombinePrecision::kBf16;
  FusedEnd::Args args;

  bool operator==(const EndingKey&) const = default;
};

/// What the layers of one group build once and use in turn: the memory that they exchange through,
/// for layers whose calls need the same. Their forwards must not overlap; of each end the first
/// forward alone has the warm-up's deadline.
struct SharedEnds {
  std::shared_ptr<CallOrder> order;  // from the first layer on
  EndPool<comm::Exchange, std::pair<const comm::Strategy*, comm::ExchangeShape>> exchanges;
  EndPool<MegaMoe, std::pair<MegaShape, std::string_view>> fused_exchanges;
  EndPool<comm::Reduction, comm::ReductionShape> reductions;
  EndPool<FusedEnd, EndingKey> endings;
};

}  // namespace switchyard::layer
