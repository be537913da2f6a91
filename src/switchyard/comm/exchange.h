// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "switchyard/comm/group.h"
#include "switchyard/comm/wire.h"

namespace switchyard::comm {

/// Where the rows of one token land at the receivers.
enum class RowLayout : std::uint8_t {
  kRankMajor,    // one row per receiving rank, in a block of `capacity` rows per source
  kCompact,      // one row per receiving rank, packed in source order
  kExpertMajor,  // one row per choice, in a block of ranks * capacity rows per local slot
};
/// Who multiplies routing weights.
enum class WeightsBy : std::uint8_t {
  kExperts,  // the receiver: a share is the sum of weight * expert row over its local choices
  kCombine,  // the combine: a share is one expert's row, without its weight
};

/// What a strategy promises and expects of its caller. Strategies of one contract give the same
/// bits.
struct Contract {
  RowLayout layout = RowLayout::kRankMajor;
  WeightsBy weights = WeightsBy::kExperts;
};

/// Most ids of one token.
inline constexpr std::int64_t kMaxChoices = 32;

/// What an exchange is built for; equal on all ranks. Of a group of survivors `ep` is still the
/// number of ranks that the slots are laid out for, see ExchangeOptions::live.
///
/// Units:   widths and counts in elements, *_bytes per row.
struct ExchangeShape {
  std::int64_t ep = 1, tp = 1;  // rank = ep_rank * tp + tp_rank
  std::int64_t slots = 0;       // rank r holds ep_shard(slots, ep, r / tp)
  std::int64_t top_k = 0;
  std::int64_t capacity = 0;     // most tokens of one rank
  std::int64_t hidden = 0;       // width of an expert's output row
  std::int64_t row_bytes = 0;    // most bytes of a token's (quantised) hidden states
  std::int64_t scale_bytes = 0;  // most bytes of its scale factors
  std::int64_t share_bytes = 0;  // most bytes of a share on the wire
  std::int64_t num_stats = 0;    // load statistics carried along per rank; 0: none

  bool operator==(const ExchangeShape&) const = default;
  std::int64_t ranks() const { return ep * tp; }
  /// Errors: UsageError with field, value and limit.
  void check() const;
};

/// One rank's tokens. Every field but the pointers, `tokens` and strides is equal on all ranks.
///
/// Shapes:  hidden [tokens] rows of row_bytes, hidden_stride bytes apart; scales likewise or null;
///          ids, weights [tokens, top_k], id -1 skips; stats [num_stats] or null. All of them stay
///          until the dispatch has returned.
struct DispatchArgs {
  std::int64_t tokens = 0;
  const void* hidden = nullptr;
  std::int64_t hidden_stride = 0, row_bytes = 0;
  const void* scales = nullptr;
  std::int64_t scale_stride = 0, scale_bytes = 0;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  const std::int32_t* stats = nullptr;
  Wire wire = Wire::kBf16;  // of the combine
  bool more = false;        // this rank has tokens left for another exchange; need not be equal
};

/// Valid rows of a receive buffer.
struct Segment {
  std::int64_t first = 0, rows = 0;
  int source = 0;          // the rank that they come from
  std::int64_t slot = -1;  // expert-major: the local slot that they are for
};

/// What this rank received, in place; stays until the combine.
///
/// Shapes:  row i at hidden + i * hidden_stride, and so on; ids, weights [rows, ids_per_row]: local
///          slot, or -1 where the choice is not this rank's (its weight is then 0). stats [ranks,
///          num_stats] or null. The caller writes the share of every row that has a local id to
///          shares + i * share_stride with encode_row(wire).
struct Received {
  std::span<const Segment> segments;  // empty ones are left out
  /// The same rows in fewer pieces: segments that lie back to back and make no more than `capacity`
  /// rows together are one. Its source is -1 when they come from several ranks, its slot when they
  /// are for several slots. For experts whose weights are read once per piece.
  std::span<const Segment> runs;
  std::int64_t num_rows = 0;  // over all segments
  const std::byte* hidden = nullptr;
  std::int64_t hidden_stride = 0;
  const std::byte* scales = nullptr;
  std::int64_t scale_stride = 0;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  std::int64_t ids_per_row = 0;
  const std::int32_t* stats = nullptr;
  std::byte* shares = nullptr;
  std::int64_t share_stride = 0;
  Wire wire = Wire::kBf16;
  /// Choices of this rank's own tokens whose slots have no holder among the live ranks: they are
  /// skipped as -1 is, and add nothing to the sum; weights are not spread anew.
  std::int64_t skipped_choices = 0;
  /// Whether any rank has more tokens: all ranks must then exchange once more. The same on all.
  bool more = false;
};

class Exchange;

/// The right to one combine, handed from the dispatch that it belongs to.
class Ticket {
 public:
  Ticket(Ticket&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)),
        sequence_(other.sequence_),
        received_(other.received_) {}
  Ticket& operator=(Ticket&& other) noexcept {
    owner_ = std::exchange(other.owner_, nullptr);
    sequence_ = other.sequence_;
    received_ = other.received_;
    return *this;
  }
  ~Ticket() = default;
  /// What the dispatch received.
  const Received& received() const { return received_; }

 private:
  friend class Exchange;
  Ticket(Exchange* owner, std::uint32_t sequence, const Received& received)
      : owner_(owner), sequence_(sequence), received_(received) {}
  Exchange* owner_;
  std::uint32_t sequence_;
  Received received_;
};

/// Who takes a token's sum, in token order: `sum` [hidden] holds the shares of all ranks (or, under
/// WeightsBy::kCombine, weight * row of all choices) in fp32, not yet multiplied by any factor.
struct RowSink {
  void* context = nullptr;
  void (*row)(void* context, std::int64_t token, const float* sum) = nullptr;
};

/// What one rank tells another in front of a dispatch's rows.
struct MessageHeader {
  std::uint32_t magic = 0, sequence = 0;
  std::uint32_t rows = 0;  // for that rank
  std::uint32_t row_bytes = 0, scale_bytes = 0, wire = 0, has_stats = 0, more = 0;
  std::uint32_t digest = 0;  // of the fields above
};

/// Points at which a test may meddle; `header` is set at kHeader only.
enum class FaultPoint : std::uint8_t {
  kBeforeData,
  kAfterData,
  kHeader,
  kBeforeShares,
  kAfterShares,
};
/// A test's hand in the exchange: may wait, throw, end the process, or change the header.
struct FaultHook {
  void* context = nullptr;
  void (*at)(void* context, FaultPoint point, MessageHeader* header) = nullptr;
};

/// How to build an exchange beside its shape; equal on all ranks but for the hook.
struct ExchangeOptions {
  std::uint32_t first_sequence = 0;
  FaultHook hook{};
  /// In a group of survivors: which of the `ep` ranks of the shape each rank of the group is,
  /// ascending. Empty: all of them. Slots of the others have no holder any more.
  std::vector<int> live{};
};

/// One rank's end of an expert-parallel exchange. Calls are collective: every rank dispatches and
/// then combines, ranks without tokens too. They allocate nothing.
///
/// Errors:  UsageError for arguments that break the shape, a second dispatch before the combine, a
///          ticket of another exchange; PeerError when a peer does not come, or gave up. Any error
///          in a dispatch or combine aborts the group, so that every rank hears of it.
class Exchange {
 public:
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Sends this rank's tokens to where their experts are, and receives.
  Ticket dispatch(const DispatchArgs& args);
  /// Returns the shares to their tokens' ranks, sums them, and hands every token's sum to `sink`.
  void combine(Ticket ticket, const RowSink& sink);

  /// Whether nothing was written between the parts of this rank's memory.
  virtual bool canaries_intact() const = 0;
  /// Bytes of memory that all ranks share, and of this rank's own.
  virtual std::pair<std::size_t, std::size_t> memory_bytes() const = 0;
  /// What was built.
  const ExchangeShape& shape() const { return shape_; }

 protected:
  Exchange(Group& group, const ExchangeShape& shape, const ExchangeOptions& options);

  virtual Received do_dispatch(const DispatchArgs& args) = 0;
  virtual void do_combine(const RowSink& sink) = 0;

  /// A wait of the exchange that runs, with the budget that it has.
  Patience patience(std::string_view phase);
  /// Runs the test's hook.
  void fault(FaultPoint point, MessageHeader* header = nullptr);
  /// The header for `rows` rows, as the hook leaves it.
  MessageHeader make_header(const DispatchArgs& args, std::uint32_t rows);
  /// Compares a source's header with this rank's own arguments, and notes whether it has more.
  /// Errors: PeerError when it is not whole, UsageError with both sides when the ranks differ.
  void check_header(const MessageHeader& header, const DispatchArgs& args, int source);
  /// The first of the tp ranks that hold each slot; -1 when none does.
  std::span<const std::int32_t> owners() const { return owners_; }
  /// First slot of `rank`, and how many it holds.
  std::pair<std::int64_t, std::int64_t> slots_of(int rank) const;

  Group& group() { return group_; }
  const Group& group() const { return group_; }
  std::uint32_t sequence() const { return sequence_; }
  const DispatchArgs& sent() const { return sent_; }

 private:
  void check(const DispatchArgs& args) const;
  std::int64_t ep_rank(int rank) const;
  void merge_segments(std::span<const Segment> segments);

  Group& group_;
  ExchangeShape shape_;
  FaultHook hook_;
  std::uint32_t sequence_;
  bool dispatched_ = false, first_ = true, more_ = false;
  DispatchArgs sent_;  // of the exchange that runs; its pointers are stale after it
  std::vector<Segment> runs_;
  std::vector<int> live_;             // [group size] the ep rank that each one is; empty: itself
  std::vector<std::int32_t> owners_;  // [slots] the first rank that holds it, or -1
};

}  // namespace switchyard::comm
