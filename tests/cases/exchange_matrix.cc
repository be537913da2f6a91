// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/exchange_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "switchyard/base/check.h"
#include "tests/cases/mega_case.h"
#include "tests/cases/pairwise.h"
#include "tests/cases/received_check.h"
#include "tests/support/same_bits.h"
#include "tests/support/soak.h"

namespace switchyard::test {
namespace {

using comm::Contract;
using comm::WeightsBy;
using comm::Wire;

const comm::Strategy* const kStrategies[] = {&comm::all_gather(), &comm::one_sided(),
                                             &comm::two_sided(),  &comm::expert_major(),
                                             &comm::compact(),    &comm::fused()};
constexpr std::int64_t kEps[] = {1, 2, 3, 4, 8}, kTopKs[] = {1, 2, 3, 5, 8, 22},
                       kHiddens[] = {8, 96, 264, 7168};
constexpr Wire kCombines[] = {Wire::kBf16, Wire::kFp8, Wire::kNvfp4};
constexpr std::array<int, 8> kLevels = {6, 5, 6, 4, 6, 5, 2, 3};
constexpr std::int64_t kCapacity = 13, kManyTokens = 4097, kWidestOfMany = 264;

MatrixCase case_of(const std::vector<int>& row) {
  return {.strategy = kStrategies[row[0]],
          .ep = kEps[row[1]],
          .top_k = kTopKs[row[2]],
          .hidden = kHiddens[row[3]],
          .fill = Fill(row[4]),
          .payload = kPayloadKinds[row[5]],
          .quantised_first = row[6] == 0,
          .wire = kCombines[row[7]]};
}

/// What two combinations would repeat: bf16 rows are quantised nowhere, and many tokens are narrow.
bool repeats(const MatrixCase& c) {
  return (c.payload == PayloadKind::kBf16 && !c.quantised_first) ||
         (c.fill == Fill::kMany && c.hidden > kWidestOfMany);
}

/// Instead of a combination that repeats another one, that one.
MatrixCase meant(MatrixCase c) {
  if (c.payload == PayloadKind::kBf16) c.quantised_first = true;
  if (c.fill == Fill::kMany) c.hidden = std::min(c.hidden, kWidestOfMany);
  return c;
}

/// Rel L2 that the sums may be from those in double: rule 12's budgets of a bf16 leaf and of
/// activations in 8 and 4 bits.
double limit_of(Wire wire) { return wire == Wire::kBf16 ? 5e-3 : wire == Wire::kFp8 ? 0.06 : 0.2; }

double distance(const std::vector<float>& got, const std::vector<double>& want) {
  double off = 0, all = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    off += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
    all += want[i] * want[i];
  }
  return all == 0 ? std::sqrt(off) : std::sqrt(off / all);
}

bool any_choice(const ExchangeInput& in) {
  const std::size_t choices = std::size_t(in.tokens * in.shape.top_k);
  return std::any_of(in.ids.begin(), in.ids.begin() + std::ptrdiff_t(choices),
                     [](std::int32_t id) { return id >= 0; });
}

/// The first tokens, which are enough for a control.
ExchangeInput first_of(const ExchangeInput& in) {
  constexpr std::int64_t kEnough = 40;
  ExchangeInput out = in;
  out.tokens = std::min(in.tokens, kEnough);
  return out;
}

/// Of the tokens that a control looks at: how far from the exact sums, and that each slip shows.
std::string controls_fault(const ExchangeInput& in, const Contract& contract,
                           const std::vector<float>& got, MatrixControls& controls) {
  const ExchangeInput few = first_of(in);
  if (!any_choice(few)) return "";
  const std::size_t width = std::size_t(in.shape.hidden), half = width / 2;
  std::vector<float> sums(got.begin(), got.begin() + std::ptrdiff_t(few.tokens * in.shape.hidden));
  const std::vector<double> exact = exact_sums(few);
  const double limit = limit_of(in.wire), off = distance(sums, exact);
  if (!(off <= limit)) return cat("rel L2 ", off, " to the sums in double exceeds ", limit);
  if (same_bits(sums, expected_sums(few, contract, {.unrounded = true})))
    return "sums without the wire's rounding have the same bits";
  ++controls.unrounded;
  controls.reversed += !same_bits(sums, expected_sums(few, contract, {.reversed = true}));
  const bool combine = contract.weights == WeightsBy::kCombine;
  controls.other_weigher += !same_bits(
      sums, expected_sums(few, (combine ? comm::one_sided() : comm::expert_major()).contract));
  for (std::size_t t = 0; t < std::size_t(few.tokens); ++t)
    std::rotate(sums.begin() + std::ptrdiff_t(t * width),
                sums.begin() + std::ptrdiff_t(t * width + half),
                sums.begin() + std::ptrdiff_t((t + 1) * width));
  if (!(distance(sums, exact) > limit)) return cat("swapped halves are within the limit ", limit);
  return "";
}

}  // namespace

comm::ExchangeShape MatrixCase::shape() const {
  constexpr std::int64_t kFewerSlots = 3, kMoreSlots = 11;
  const bool many = fill == Fill::kMany;
  return exchange_shape(ep, std::max(top_k + (many ? kFewerSlots : kMoreSlots), ep), top_k,
                        many ? kManyTokens : kCapacity, hidden,
                        quantised_first ? payload : PayloadKind::kBf16, wire);
}

std::int64_t MatrixCase::tokens(int rank, int round) const {
  const std::int64_t capacity = fill == Fill::kMany ? kManyTokens : kCapacity;
  switch (fill) {
    case Fill::kNone:
      return 0;
    case Fill::kOne:
      return 1;
    case Fill::kUneven:
      return (rank * 5 + 3 + round) % (capacity + 1);
    case Fill::kAlmostFull:
      return capacity - 1;
    case Fill::kFull:
    case Fill::kMany:
      return capacity;
  }
  throw InternalError("a level of the matrix has no tokens");
}

std::string MatrixCase::text() const {
  return cat(strategy->name, " ep ", ep, " k ", top_k, " H ", hidden, " fill ", int(fill),
             " payload ", int(payload), quantised_first ? " quantised first " : " as it is ",
             comm::to_string(wire));
}

std::vector<MatrixCase> matrix_cases(std::optional<std::int64_t> ep) {
  std::array<int, 8> levels = kLevels;
  if (ep) levels[1] = 1;
  std::vector<MatrixCase> out;
  for (const std::vector<int>& row : is_soak() ? all_combinations(levels) : pairwise(levels)) {
    MatrixCase c = case_of(row);
    if (is_soak() && repeats(c)) continue;
    if (ep) c.ep = *ep;
    out.push_back(meant(c));
  }
  return out;
}

MatrixRound::MatrixRound(const MatrixCase& c, int round) {
  const comm::ExchangeShape shape = c.shape();
  for (int r = 0; r < int(c.ep); ++r) {
    const ExchangeInput plain(shape, r, c.tokens(r, round), round, PayloadKind::kBf16, c.wire);
    read.push_back(quantised(plain, c.payload));
    sent.push_back(c.quantised_first ? read.back() : plain);
  }
}

MatrixRank::MatrixRank(comm::Group& group, const MatrixCase& c)
    : case_(c), shape_(c.shape()), rank_(group.rank()) {
  // Half of the cases pass the wrap of the sequence number.
  const std::uint32_t first = c.top_k % 2 == 0 ? 0xffffffffU : 0U;
  if (c.strategy == &comm::fused()) {
    const PayloadKind sent = c.quantised_first ? c.payload : PayloadKind::kBf16;
    layer::MegaShape shape = mega_shape(shape_, payload_of(sent, c.hidden));
    shape.first_sequence = first;
    mega_ = std::make_unique<layer::MegaMoe>(group, shape, "played");
  } else {
    exchange_ = make_exchange(*c.strategy, group, shape_, {.first_sequence = first});
  }
}

std::string MatrixRank::exchange(const MatrixRound& round, SumCollector& got) {
  const ExchangeInput& sent = round.sent[std::size_t(rank_)];
  const ExchangeInput& read = round.read[std::size_t(rank_)];
  const PayloadKind quantised_behind = case_.quantised_first ? PayloadKind::kBf16 : case_.payload;
  if (mega_) {
    const std::vector<std::int32_t> stats = run_mega(*mega_, {sent, rank_, quantised_behind}, got);
    for (int r = 0; r < int(case_.ep); ++r) {
      const std::vector<std::int32_t>& want = round.sent[std::size_t(r)].stats;
      if (!std::equal(want.begin(), want.end(), stats.begin() + r * shape_.num_stats))
        return cat("the statistics of rank ", r, " differ");
    }
    return mega_->canaries_intact() ? "" : "a canary is gone";
  }
  comm::Ticket ticket = exchange_->dispatch(sent.args());
  std::string fault = received_fault(ticket.received(), *case_.strategy, round.sent, rank_);
  serve(Requantised(ticket.received(), quantised_behind, case_.hidden).received(), shape_,
        case_.strategy->contract, read.payload, rank_);
  exchange_->combine(std::move(ticket), got.sink());
  if (fault.empty() && !exchange_->canaries_intact()) fault = "a canary is gone";
  return fault;
}

std::string MatrixRank::run(const MatrixRound& round, MatrixControls& controls) {
  const ExchangeInput& read = round.read[std::size_t(rank_)];
  const Contract contract = mega_ ? comm::one_sided().contract : case_.strategy->contract;
  SumCollector got(read.tokens, case_.hidden);
  std::string fault = exchange(round, got);
  if (fault.empty() && got.rows != read.tokens) fault = cat(got.rows, " sums came back");
  if (fault.empty() && !same_bits(got.sums, expected_sums(read, contract)))
    fault = "the sums are not the contract's";
  if (fault.empty()) fault = controls_fault(read, contract, got.sums, controls);
  return fault.empty() ? "" : cat(case_.text(), ", rank ", rank_, ": ", fault);
}

}  // namespace switchyard::test
