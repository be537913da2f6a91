// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/mega_case.h"

#include <cstring>

namespace switchyard::test {
namespace {

/// Experts that are played row by row, where each row lies.
struct PlayedExperts {
  const layer::MegaMoe& mega;
  const MegaRound& round;
  std::vector<std::int32_t> stats{};

  layer::BatchRunner runner() {
    return {.context = this,
            .run = [](void* self,
                      const layer::MegaBatch& b) { static_cast<PlayedExperts*>(self)->play(b); },
            .counted = [](void* self) { static_cast<PlayedExperts*>(self)->count(); }};
  }
  void play(const layer::MegaBatch& b) {
    const comm::ExchangeShape& shape = round.input.shape;
    const PayloadKind kind = round.quantised_by_experts;
    const comm::Segment one{.first = 0, .rows = 1};
    if (round.rows != nullptr) *round.rows += b.rows;
    for (std::int64_t i = 0; i < b.rows; ++i) {
      comm::Received in;
      in.segments = {&one, 1};
      in.hidden = b.hidden[i];
      in.scales = b.scales[i];
      in.ids = b.ids + i * shape.top_k;
      in.weights = b.weights + i * shape.top_k;
      in.ids_per_row = shape.top_k;
      in.shares = b.shares + i * b.share_stride;
      in.share_stride = b.share_stride;
      in.wire = round.input.wire;
      serve(Requantised(in, kind, shape.hidden).received(), shape, comm::one_sided().contract,
            kind == PayloadKind::kBf16 ? round.input.payload : payload_of(kind, shape.hidden),
            round.rank);
    }
  }
  void count() {
    const comm::ExchangeShape& shape = round.input.shape;
    for (int r = 0; r < int(shape.ep); ++r)
      stats.insert(stats.end(), mega.stats(r), mega.stats(r) + shape.num_stats);
  }
};

}  // namespace

layer::MegaShape mega_shape(const comm::ExchangeShape& s, Payload payload) {
  return {.slots = s.slots,
          .top_k = s.top_k,
          .capacity = s.capacity,
          .hidden = s.hidden,
          .row_bytes = payload.row_bytes,
          .scale_bytes = payload.scale_bytes,
          .share_bytes = s.share_bytes,
          .num_stats = s.num_stats};
}

std::vector<std::int32_t> run_mega(layer::MegaMoe& mega, const MegaRound& round,
                                   SumCollector& got) {
  const ExchangeInput& in = round.input;
  const comm::DispatchArgs args = in.args();
  for (std::int64_t t = 0; t < in.tokens; ++t) {
    std::memcpy(mega.rows() + t * mega.row_stride(), in.hidden.data() + t * args.hidden_stride,
                std::size_t(args.row_bytes));
    if (args.scale_bytes > 0)
      std::memcpy(mega.scales() + t * mega.scale_stride(), in.scales.data() + t * args.scale_stride,
                  std::size_t(args.scale_bytes));
  }
  PlayedExperts played{mega, round};
  const layer::MegaArgs own{.tokens = in.tokens,
                            .ids = in.ids.data(),
                            .weights = in.weights.data(),
                            .stats = in.stats.data(),
                            .wire = in.wire};
  mega.run(round.args != nullptr ? *round.args : own, played.runner(), got.sink());
  return std::move(played.stats);
}

}  // namespace switchyard::test
