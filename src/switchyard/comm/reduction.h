// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "switchyard/comm/exchange.h"
#include "switchyard/comm/group.h"
#include "switchyard/comm/symmetric_memory.h"
#include "switchyard/comm/wire.h"
#include "switchyard/core/deployment.h"
#include "switchyard/core/eligibility.h"
#include "switchyard/core/problem.h"

namespace switchyard::comm {

/// What a reduction is built for; equal on all ranks.
///
/// Units:   hidden in elements, *_bytes per row.
struct ReductionShape {
  bool gathers = false;  // reduce-scatter of all ranks' tokens; else all-reduce of the same tokens
  std::int64_t capacity = 0;         // most tokens of one rank
  std::int64_t top_k = 0;            // read where tokens are gathered, as row_bytes is
  std::int64_t hidden = 0;           // width of a share
  std::int64_t row_bytes = 0;        // of a token's hidden states
  std::int64_t share_bytes = 0;      // most bytes of a share on the wire
  std::uint32_t first_sequence = 0;  // calls count on from here

  bool operator==(const ReductionShape&) const = default;
  /// Errors: UsageError with field, value and limit.
  void check() const;
};

/// Whether the ranks of `deployment` can reduce the shares of such a layer: in memory that they
/// share, or on cuda by an all-reduce between GPUs, one for each rank. Pure.
Eligibility can_reduce(const Problem& problem, const Deployment& deployment);
/// The same of ranks on GPUs, however many GPUs there are: tep and ttp, a wire of the activation
/// dtype, each expert in one slot. Pure.
Eligibility can_reduce_between_gpus(const Problem& problem, const Deployment& deployment);

/// One rank's call.
///
/// Shapes:  hidden [tokens] rows of row_bytes, hidden_stride bytes apart; ids, weights [tokens,
///          top_k]. The three are read where tokens are gathered, before begin() returns.
struct ReductionArgs {
  std::int64_t tokens = 0;
  const void* hidden = nullptr;
  std::int64_t hidden_stride = 0;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  float factor = 1;  // of this rank's tokens
  Wire wire = Wire::kBf16;
};

/// Tokens to make shares of, and where the shares go.
///
/// Shapes:  hidden [tokens] rows hidden_stride bytes apart, ids, weights [tokens, top_k], as their
///          rank gave them; null where nothing is gathered. share t at shares + t * share_stride.
struct TokenBlock {
  std::int64_t tokens = 0;
  const std::byte* hidden = nullptr;
  std::int64_t hidden_stride = 0;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  float factor = 1;
  std::byte* shares = nullptr;
  std::int64_t share_stride = 0;
};

/// Sums the shares that every rank has of every token, in rank order in fp32. Under attention TP
/// (tep, ttp) all ranks hold the same tokens and all get the sums: an all-reduce. Under `dtp` each
/// rank first gets every rank's tokens, and then the sums of its own: all-gather, reduce-scatter.
///
/// A call is begin(), a share for every token of every block(), finish(). Calls are collective,
/// ranks without tokens make them too, and they allocate nothing.
///
/// Ordering: tokens and shares stay in their writer's memory and are read there, after a flag
///           (release, acquire). Shares and headers have two banks: who writes one for the second
///           time has waited for everybody's shares of the call between, and so for the end of all
///           reading. Tokens need one bank: shares come after the last reading of tokens.
/// Errors:   UsageError for arguments that break the shape, or when ranks differ; PeerError when a
///           peer does not come, or gave up. Any error aborts the group.
class Reduction {
 public:
  /// Collective. Errors: UsageError on every rank when the shape breaks a limit, the ranks differ
  /// or memory is refused; PeerError when a rank does not come.
  Reduction(Group& group, const ReductionShape& shape);
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;

  /// Hands in this rank's tokens and, where they are gathered, waits for everybody's.
  void begin(const ReductionArgs& args);
  /// How many blocks of tokens want shares: one per rank, or one.
  int num_blocks() const { return shape_.gathers ? group_.size() : 1; }
  /// Block `b`, after begin(); rank b's tokens where they are gathered.
  TokenBlock block(int b) const;
  /// Waits for everybody's shares, and hands the sums of this rank's tokens to `sink`.
  void finish(const RowSink& sink);

  /// Whether nothing was written between the parts of this rank's memory.
  bool canaries_intact() const;
  /// Bytes of memory that all ranks share.
  std::size_t memory_bytes() const { return memory_.total_bytes(); }

 private:
  struct Header {
    std::uint32_t sequence = 0, wire = 0;
    std::int64_t tokens = 0;
    float factor = 1;
  };
  // Byte offsets in a slice.
  struct Layout {
    std::int64_t flags = 0, headers = 0, hidden = 0, ids = 0, weights = 0, shares = 0, bytes = 0;
    std::int64_t row_stride = 0, share_stride = 0, bank_bytes = 0;
  };
  enum class Step : std::uint8_t { kTokens, kShares };
  static constexpr int kSteps = 2, kBanks = 2;

  static Layout layout_of(const ReductionShape& shape, int ranks);
  void check(const ReductionArgs& args) const;
  void copy_tokens(const ReductionArgs& args);
  void meet(Step step, const char* phase);
  void compare_headers() const;
  Word& flag(int rank, Step step) const;
  Header& header(int rank) const;
  std::byte* share(int rank, int block, std::int64_t token) const;

  Group& group_;
  ReductionShape shape_;
  Layout layout_;
  SymmetricMemory memory_;
  std::uint32_t sequence_;
  bool begun_ = false, first_ = true;
  std::vector<float> sum_;  // [hidden]
};

}  // namespace switchyard::comm
