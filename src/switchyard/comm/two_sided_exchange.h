// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "switchyard/base/host_buffer.h"
#include "switchyard/comm/exchange.h"
#include "switchyard/comm/layout.h"
#include "switchyard/comm/symmetric_memory.h"
#include "switchyard/comm/targets.h"

namespace switchyard::comm {

/// An exchange through one FIFO per pair of ranks, in the receiver's memory: the sender waits for
/// room, the receiver for rows, and both go on with other peers meanwhile. Shared memory does not
/// grow with the number of tokens; received rows are compact, in this rank's own memory.
///
/// Ordering: an entry is written before the head that covers it (release), and read before the
///           tail that frees it. Dispatch and combine share the FIFOs: the receiver knows from the
///           headers where one ends. A rank may be one dispatch ahead of a peer to which it sends
///           nothing, which is why headers and statistics have two banks.
class TwoSidedExchange : public Exchange {
 public:
  /// Collective; the arguments are checked and compared already. Errors: UsageError on every rank
  /// when the system refuses the memory; PeerError.
  TwoSidedExchange(Group& group, const ExchangeShape& shape, const ExchangeOptions& options);

  bool canaries_intact() const override;
  std::pair<std::size_t, std::size_t> memory_bytes() const override;

 private:
  // How far this rank has come with one peer, in rows of the current phase.
  struct Progress {
    std::int64_t to_send = 0, sent = 0, to_receive = 0, received = 0;
  };
  enum class Phase : std::uint8_t { kDispatch, kCombine };

  Received do_dispatch(const DispatchArgs& args) override;
  void do_combine(const RowSink& sink) override;

  void exchange_headers(const DispatchArgs& args);
  void move_rows(Phase phase);
  bool send_some(Phase phase, int peer);
  bool receive_some(Phase phase, int peer);
  void pack(std::int64_t token, int peer, std::byte* entry) const;
  void unpack(std::int64_t row, const std::byte* entry);
  std::byte* staged_share(int peer, std::int64_t number);
  int first_unfinished() const;

  Word& flag(int rank, Flag f, int source) const;
  void ring(int rank) const;

  ExchangeLayout layout_;
  SymmetricMemory memory_;
  Targets targets_;
  std::vector<std::int32_t> tokens_for_;      // [ranks, capacity] my tokens that each peer gets
  std::vector<std::int64_t> from_;            // [ranks] first received row of each source
  std::vector<std::uint32_t> heads_, tails_;  // [ranks] of my FIFO at a peer, of its FIFO here
  std::vector<Progress> progress_;            // [ranks]
  // Received rows [ranks * capacity]; shares to return likewise; shares that came back
  // [capacity, targets].
  HostBuffer hidden_, scales_, ids_, weights_, shares_, staged_;
  std::vector<float> sum_;
  std::vector<Segment> segments_;
};

}  // namespace switchyard::comm
