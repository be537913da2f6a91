// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/comm/factory.h"
#include "switchyard/layer/mega_moe.h"
#include "tests/cases/exchange_case.h"

namespace switchyard::test {

/// How many tokens the ranks have.
enum class Fill { kNone, kOne, kUneven, kAlmostFull, kFull, kMany };

/// One combination of the exchange's axes: any two levels of two axes meet in a change's tests, all
/// of them in the soak.
struct MatrixCase {
  const comm::Strategy* strategy = nullptr;
  std::int64_t ep = 1, top_k = 1, hidden = 0;
  Fill fill = Fill::kNone;
  PayloadKind payload = PayloadKind::kBf16;  // what the experts read
  bool quantised_first = false;              // by the sender; else by the experts' rank
  comm::Wire wire = comm::Wire::kBf16;

  comm::ExchangeShape shape() const;
  std::int64_t tokens(int rank, int round) const;
  /// Rounds of it that are worth their time.
  int rounds() const { return fill == Fill::kMany ? 1 : 2; }
  std::string text() const;
};

/// The matrix, or its pairwise subset; with `ep` for groups of that size alone.
std::vector<MatrixCase> matrix_cases(std::optional<std::int64_t> ep = {});

/// All ranks' tokens of one round: as they are dispatched, and as the experts read them.
struct MatrixRound {
  MatrixRound(const MatrixCase& c, int round);
  std::vector<ExchangeInput> sent, read;
};

/// How often a slip showed: each must, or the comparison of bits would not tell it.
struct MatrixControls {
  std::atomic<std::int64_t> unrounded = 0, reversed = 0, other_weigher = 0;
};

/// One rank's end of a case. Construction and run() are collective.
class MatrixRank {
 public:
  MatrixRank(comm::Group& group, const MatrixCase& c);
  /// Exchanges, compares what arrived and what came back with the contract bit for bit, and with
  /// the sums in double within the wire's limit; what is wrong, or nothing.
  std::string run(const MatrixRound& round, MatrixControls& controls);

 private:
  std::string exchange(const MatrixRound& round, SumCollector& got);
  MatrixCase case_;
  comm::ExchangeShape shape_;
  int rank_;
  std::unique_ptr<comm::Exchange> exchange_;
  std::unique_ptr<layer::MegaMoe> mega_;  // of the strategy that is a leaf
};

}  // namespace switchyard::test
