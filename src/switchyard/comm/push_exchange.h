// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "switchyard/comm/exchange.h"
#include "switchyard/comm/layout.h"
#include "switchyard/comm/symmetric_memory.h"
#include "switchyard/comm/targets.h"
#include "switchyard/core/deployment.h"
#include "switchyard/core/eligibility.h"
#include "switchyard/core/problem.h"

namespace switchyard::comm {

/// What tells the strategies apart that push rows into the receivers' memory and pull shares back.
struct PushRules {
  RowLayout layout = RowLayout::kRankMajor;
  bool to_everyone = false;  // every token to every rank, needed there or not
};

/// The gate of the strategies that push rows only to the ranks that need them.
Eligibility can_push(const Problem& p, const Deployment& d);

/// An exchange in which the sender writes a row to where the receiver wants it, and the combine
/// reads each share where its expert left it.
///
/// Ordering: rows, header and counts come before the data flag (release); a receiver reads them
///           after it (acquire). Shares come before the shares flag likewise. A rank dispatches
///           again after its own combine, which has waited for everybody's shares flag, that is
///           until nobody reads its rows any more; and writes shares again after a dispatch, which
///           has waited for everybody's data flag, that is until nobody reads the old ones.
class PushExchange : public Exchange {
 public:
  /// Collective; the arguments are checked and compared already. Errors: UsageError on every rank
  /// when the system refuses the memory; PeerError.
  PushExchange(Group& group, const ExchangeShape& shape, const ExchangeOptions& options,
               const PushRules& rules);

  bool canaries_intact() const override;
  std::pair<std::size_t, std::size_t> memory_bytes() const override;

 private:
  Received do_dispatch(const DispatchArgs& args) override;
  void do_combine(const RowSink& sink) override;

  void find_targets(const DispatchArgs& args);
  void find_slots(const std::int32_t* ids, Target* out);
  void find_bases();
  void settle_rows(const DispatchArgs& args);
  void push_token(const DispatchArgs& args, std::int64_t token);
  void push_row(const DispatchArgs& args, std::int64_t token, const Target& to,
                std::int64_t choice);
  void publish_data(const DispatchArgs& args);
  void receive(const DispatchArgs& args);
  void add_segments(int source, const MessageHeader& header);

  Word& flag(int rank, Flag f, int source) const;
  const std::uint32_t* counts_from(int source) const;

  PushRules rules_;
  ExchangeLayout layout_;
  SymmetricMemory memory_;
  Targets targets_;
  std::vector<std::uint32_t> counts_;  // rows sent: by rank, or by slot under kExpertMajor
  std::vector<std::int64_t> base_;     // [ranks] first row of mine in each receiver's memory
  std::vector<std::int64_t> from_;     // [ranks] first row of each source in mine
  std::vector<float> weights_;         // [capacity, k], kExpertMajor only
  std::vector<float> sum_;             // [hidden]
  std::vector<Segment> segments_;
};

}  // namespace switchyard::comm
