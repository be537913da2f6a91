// SPDX-License-Identifier: Apache-2.0
// The scheduler of ranks whose tokens a strategy exchanges: what follows the slots of the choices.
#include <algorithm>

#include "switchyard/layer/rank_scratch.h"

namespace switchyard::layer {

std::int64_t RankLayer::chunk() const {
  return options_.chunk > 0 ? std::min(options_.chunk, options_.capacity) : options_.capacity;
}

void RankLayer::run_received(const comm::Received& in, const Scratch& s) const {
  for (const comm::Segment& segment : in.runs) {
    const std::byte* hidden = in.hidden + segment.first * in.hidden_stride;
    Rows rows{.count = segment.rows,
              .hidden = hidden,
              .hidden_stride = in.hidden_stride,
              .ids = in.ids + segment.first * in.ids_per_row,
              .weights = in.weights + segment.first * in.ids_per_row,
              .shares = in.shares + segment.first * in.share_stride,
              .share_stride = in.share_stride};
    for (std::int64_t i = 0; i < segment.rows && payload_.quantised(); ++i) {
      s.code_rows[std::size_t(i)] = hidden + i * in.hidden_stride;
      s.scale_rows[std::size_t(i)] = in.scales + (segment.first + i) * in.scale_stride;
    }
    if (payload_.quantised())
      rows.apart = {.rows = s.code_rows.data(), .scales = s.scale_rows.data(), .quantised = true};
    run_rows(rows, s);
  }
}

/// Exchanges one chunk; whether some rank has more.
bool RankLayer::exchange_chunk(const ForwardArgs& a, const Chunk& c, Scratch& s) {
  comm::DispatchArgs d{.tokens = c.tokens,
                       .hidden = s.x.row(c.first),
                       .hidden_stride = s.x.stride,
                       .row_bytes = payload_.row_bytes,
                       .ids = s.placed.data() + c.first * s.routed.width,
                       .weights = s.routed.weights.data() + c.first * s.routed.width,
                       .wire = wire_,
                       .more = c.first + c.tokens < a.tokens};
  if (payload_.quantised()) {
    note(RankStep::kQuantise);
    encode_rows({.payload = &payload_,
                 .rows = c.tokens,
                 .x = s.x.row(c.first),
                 .x_stride = s.x.stride,
                 .static_scale = layer_->routed().scales.fc1,
                 .codes = s.codes.data(),
                 .code_stride = payload_.row_bytes,
                 .scales = s.scales.data(),
                 .scale_stride = payload_.scale_bytes,
                 .stage = s.stage,
                 .pool = layer_->options().pool.get()});
    d.hidden = s.codes.data();
    d.hidden_stride = payload_.row_bytes;
    d.scales = s.scales.data();
    d.scale_stride = d.scale_bytes = payload_.scale_bytes;
  }
  if (c.number == 0 && options_.balanced) d.stats = s.counts.data();  // of the whole call
  note(RankStep::kDispatch);
  comm::Ticket ticket = exchange_->dispatch(d);
  const bool more = ticket.received().more;
  if (d.stats != nullptr) gather_counts(ticket.received().stats);
  note(RankStep::kExperts);
  run_received(ticket.received(), s);
  if (!more) start_set();
  Finisher f = finisher(a, s);
  f.first = c.first;
  note(RankStep::kCombine);
  exchange_->combine(std::move(ticket), {&f, Finisher::row});
  return more;
}

void RankLayer::exchange(const ForwardArgs& a, Scratch& s) {
  if (layer_->shared() != nullptr) note(RankStep::kShared);
  if (a.tokens > 0 && layer_->shared() != nullptr) run_shared(*layer_, a, s.parts);
  Chunk c{};
  bool more = true;
  for (; more; ++c.number) {
    c.tokens = std::min(chunk(), a.tokens - c.first);
    more = exchange_chunk(a, c, s);
    c.first += c.tokens;
  }
}

}  // namespace switchyard::layer
