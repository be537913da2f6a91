// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/comm/exchange.h"
#include "switchyard/comm/symmetric_memory.h"
#include "switchyard/comm/targets.h"

namespace switchyard::layer {

/// What a fused exchange is built for; equal on all ranks.
///
/// Units:   widths and counts in elements, *_bytes per row.
struct MegaShape {
  std::int64_t slots = 0, top_k = 0, capacity = 0;
  std::int64_t hidden = 0;  // width of a share
  std::int64_t row_bytes = 0, scale_bytes = 0, share_bytes = 0;
  std::int64_t num_stats = 0;
  std::uint32_t first_sequence = 0;  // runs count on from here

  bool operator==(const MegaShape&) const = default;
};

/// One rank's tokens, which lie in its slice already.
///
/// Shapes:  ids (slots, -1 skips), weights [tokens, top_k]; stats [num_stats] or null.
struct MegaArgs {
  std::int64_t tokens = 0;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  const std::int32_t* stats = nullptr;
  comm::Wire wire = comm::Wire::kBf16;
};

/// Rows of one or several ranks for the experts of this one, each where its own rank wrote it.
///
/// Shapes:  hidden, scales [rows] pointers; ids (local slots, -1: not here), weights [rows, top_k];
///          shares: row i at shares + i * share_stride, to be written with the wire's encode_row().
struct MegaBatch {
  std::int64_t rows = 0;
  const std::byte* const* hidden = nullptr;
  const std::byte* const* scales = nullptr;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  std::byte* shares = nullptr;
  std::int64_t share_stride = 0;
};

/// Who runs a batch through the experts.
struct BatchRunner {
  void* context = nullptr;
  void (*run)(void* context, const MegaBatch& batch) = nullptr;
  /// Called once, when the counts of all ranks are in and before the last batch has run.
  void (*counted)(void* context) = nullptr;
};

/// The leaf that exchanges tokens itself: dispatch, experts and combine are one call. A rank writes
/// its rows once, into its own symmetric memory; the ranks that hold their experts read them there,
/// with no copy between, as soon as each has come; shares are read in place the same way.
///
/// Contract:  that of one_sided: the experts weigh, a share is one row per rank that holds a
/// choice,
///            shares are added in rank order.
/// Ordering:  rows, header, ids and weights come before their rank's data flag (release), and are
///            read after it (acquire); shares and where they begin before its shares flag likewise.
///            A rank writes rows again after its own combine, which has waited for everybody's
///            shares, and so for the end of their reading. Shares have two banks: who writes one
///            for the second time has waited for everybody's shares of the run between.
/// Collective: construction and run(). A run allocates nothing.
/// Errors:    UsageError for tokens over the capacity or ids out of range, PeerError when a rank
///            does not come; either aborts the group.
class MegaMoe {
 public:
  /// `format` names the leaf. Errors: UsageError on every rank when they differ or memory is
  /// refused; PeerError.
  MegaMoe(comm::Group& group, const MegaShape& shape, std::string_view format);
  MegaMoe(const MegaMoe&) = delete;
  MegaMoe& operator=(const MegaMoe&) = delete;

  /// "switchyard.cpu.mega_moe.<format>".
  const std::string& id() const { return id_; }
  /// Where the rows of this rank's tokens are to be written before run().
  std::byte* rows() const { return at(group_.rank(), layout_.rows); }
  /// Where their scales are.
  std::byte* scales() const { return at(group_.rank(), layout_.scales); }
  /// Bytes from row to row.
  std::int64_t row_stride() const { return layout_.row_stride; }
  /// Bytes from a row's scales to the next one's.
  std::int64_t scale_stride() const { return layout_.scale_stride; }
  /// Statistics of rank `r` in the run that goes on, or null.
  const std::int32_t* stats(int r) const;

  /// Shows this rank's tokens, runs everybody's through this rank's experts, and hands every own
  /// token's sum to `sink`.
  void run(const MegaArgs& args, const BatchRunner& experts, const comm::RowSink& sink);

  /// Whether nothing was written between the parts of this rank's memory.
  bool canaries_intact() const;
  /// Bytes of memory that all ranks share.
  std::size_t memory_bytes() const { return memory_.total_bytes(); }

 private:
  struct Header {
    std::uint32_t sequence = 0, wire = 0;
    std::int64_t tokens = 0;
    std::int64_t has_stats = 0;
  };
  // Byte offsets in a slice.
  struct Layout {
    std::int64_t flags = 0, header = 0, bases = 0, stats = 0, rows = 0, scales = 0, ids = 0,
                 weights = 0, shares = 0, bytes = 0;
    std::int64_t row_stride = 0, scale_stride = 0, share_stride = 0, bank_bytes = 0;
  };
  enum class Step : std::uint8_t { kData, kShares };

  static Layout layout_of(const MegaShape& shape, int ranks);
  static std::vector<std::int64_t> regions(const Layout& layout);
  std::byte* at(int rank, std::int64_t offset) const { return memory_.slice(rank) + offset; }
  comm::Word& flag(int rank, Step step) const;
  std::byte* share(int rank, std::int64_t row) const;
  Header& header(int rank) const { return *memory_.at<Header>(rank, layout_.header); }
  void check(const MegaArgs& args) const;
  void show(const MegaArgs& args);
  void wait_for(int rank, Step step, std::string_view phase);
  void compare(int source) const;
  void run_source(int source, const BatchRunner& experts);
  bool add_row(int source, std::int64_t token);
  void run_batch(const BatchRunner& experts);
  void combine(const comm::RowSink& sink);

  comm::Group& group_;
  MegaShape shape_;
  std::string id_;
  Layout layout_;
  comm::SymmetricMemory memory_;
  comm::Targets targets_;
  std::vector<std::int32_t> owners_;  // [slots]
  std::int64_t first_slot_ = 0, num_slots_ = 0;
  std::uint32_t sequence_;
  bool first_ = true;
  // The batch that fills.
  std::int64_t filled_ = 0, begun_ = 0;               // rows of it; shares in front of it
  std::vector<const std::byte*> row_at_, scales_at_;  // [capacity]
  std::vector<std::int32_t> ids_;                     // [capacity, top_k]
  std::vector<float> weights_, sum_;                  // [capacity, top_k]; [hidden]
};

}  // namespace switchyard::layer
