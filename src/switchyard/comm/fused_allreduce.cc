// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/fused_allreduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "switchyard/base/check.h"
#include "switchyard/base/float_env.h"
#include "switchyard/comm/allreduce_words.h"
#include "switchyard/core/problem.h"

namespace switchyard::comm {
namespace {

using ops::AllReduceCall;
using ops::AllReduceStrategy;
using ops::RowScratch;

constexpr int kContributions = 0, kOwned = 1, kNumPhases = 2;
constexpr const char* kPhases[kNumPhases] = {"allreduce contributions", "allreduce owned rows"};
constexpr std::byte kCanary{0xa5};
constexpr std::uint32_t kMagic = 0x53594152;
constexpr std::int64_t kMaxRows = std::int64_t(1) << 31;

/// The words that only CPU ranks compare, around those of allreduce_words().
constexpr std::size_t kFirstWord = 2, kScaleWord = kFirstWord + ops::kAllReduceCallWords;
static_assert(kScaleWord + 1 == kAllReduceHeaderWords);

std::string_view header_name(std::size_t i) {
  return i == 0            ? "magic"
         : i == 1          ? "call number"
         : i == kScaleWord ? "scale bits"
                           : kAllReduceWordNames[i - kFirstWord];
}

bool wants_rows(const AllReduceCall& call) {
  return call.output != nullptr ||
         (call.norm && (call.norm->residual_out != nullptr || call.norm->norm_out != nullptr));
}

/// The scale that the quantiser is given, 0 where it makes its own.
float given_scale_of(const AllReduceCall& call) {
  if (!call.norm) return 0;
  if (const auto* q = std::get_if<ops::Fp8StaticOut>(&call.norm->quant)) return *q->scale.value;
  if (const auto* q = std::get_if<ops::Nvfp4Out>(&call.norm->quant)) return *q->scale.value;
  return 0;
}

AllReduceCapacity needs_of(const AllReduceCall& call, std::int64_t ranks) {
  const ops::CallShape& s = call.shape;
  return {ranks, s.tokens, s.hidden, s.dtype, s.fp32_wire};
}

ops::RowOf wire_of(const ops::CallShape& s) {
  return {s.fp32_wire ? Dtype::kF32 : s.dtype, s.hidden};
}

/// The parts of an owner's quantised row.
ops::QuantRow quant_parts(const AllReduceCall& call, std::byte* row) {
  auto* codes = reinterpret_cast<std::uint8_t*>(row);
  return {codes, codes + ops::quant_code_bytes(*call.norm, call.shape.hidden)};
}

}  // namespace

void AllReduceCapacity::check() const {
  auto in_range = [](std::string_view name, std::int64_t value, std::int64_t least,
                     std::int64_t most) {
    require(value >= least && value <= most, "allreduce workspace: ", name, " = ", value,
            " is outside ", least, "..", most);
  };
  in_range("ranks", ranks, 1, ops::kMaxAllReduceRanks);
  in_range("max_tokens", max_tokens, 0, kMaxRows - 1);
  in_range("hidden", hidden, 1, kMaxWidth);
}

AllReduceStrategy effective_strategy(const ops::CallShape& shape, std::int64_t ranks) {
  if (shape.strategy != AllReduceStrategy::kAuto) return shape.strategy;
  // A second phase pays when it saves every rank the sums of several rows.
  return ranks > 2 && shape.tokens >= 8 * ranks ? AllReduceStrategy::kTwoShot
                                                : AllReduceStrategy::kOneShot;
}

AllReduceWorkspace::AllReduceWorkspace(Group& group, const AllReduceCapacity& capacity,
                                       const AllReduceOptions& options)
    : group_(group),
      capacity_(capacity),
      options_(options),
      kernels_(ops::row_kernels(options.isa)),
      sequence_(options.first_sequence) {
  constexpr const char* kPhase = "creation of an allreduce workspace";
  guarded(group, kPhase, [&] {
    capacity.check();
    require(capacity.ranks == group.size(), "allreduce workspace: ranks = ", capacity.ranks,
            " in a group of ", group.size());
    const auto members = std::size_t(options.pool == nullptr ? 1 : options.pool->size());
    const auto width = std::size_t((std::max<std::int64_t>(capacity.hidden, 4) + 15) / 16 * 16);
    floats_.resize(members * 3 * width);
    bytes_.resize(members * width);
    for (std::size_t i = 0; i < members; ++i) {
      float* f = floats_.data() + i * 3 * width;
      scratch_.push_back({f, f + width, f + 2 * width, bytes_.data() + i * width});
    }
  });
  const Agreed mine[] = {{"max_tokens", cat(capacity.max_tokens)},
                         {"hidden", cat(capacity.hidden)},
                         {"dtype", std::string(to_string(capacity.dtype))},
                         {"fp32_wire", cat(int(capacity.fp32_wire))},
                         {"first_sequence", cat(options.first_sequence)}};
  agree(group, mine, kPhase);
  layout_ = make_allreduce_layout(capacity);
  if (group.size() == 1) return;
  memory_.emplace(group, std::size_t(layout_.bytes));
  for (std::uint32_t bank = 0; bank < 2; ++bank)
    std::fill_n(memory_->slice(group.rank()) + layout_.bank(bank) + layout_.bank_bytes,
                layout_.kGuardBytes, kCanary);
  for (int phase = 0; phase < kNumPhases; ++phase)
    for (int r = 0; r < group.size(); ++r)
      flag(group.rank(), phase, r).store(sequence_, std::memory_order_relaxed);
  // Else a fast peer's first flag would be wiped out.
  group.barrier(kPhase);
}

Word& AllReduceWorkspace::flag(int rank, int phase, int source) const {
  return *memory_->at<Word>(rank, layout_.flag(phase, source));
}

std::byte* AllReduceWorkspace::payload(int rank, std::int64_t m) const {
  return memory_->slice(rank) + layout_.bank(sequence_) + m * allreduce_payload_stride(needs_);
}

std::byte* AllReduceWorkspace::reduced(int rank, std::int64_t m) const {
  return memory_->slice(rank) + layout_.bank(sequence_) +
         needs_.max_tokens * allreduce_payload_stride(needs_) +
         m / group_.size() * allreduce_reduced_stride(needs_);
}

bool AllReduceWorkspace::canaries_intact() const {
  if (!memory_) return true;
  for (std::uint32_t bank = 0; bank < 2; ++bank) {
    const std::byte* guard =
        memory_->slice(group_.rank()) + layout_.bank(bank) + layout_.bank_bytes;
    if (!std::all_of(guard, guard + layout_.kGuardBytes, [](std::byte b) { return b == kCanary; }))
      return false;
  }
  return true;
}

void AllReduceWorkspace::fault(AllReduceFault point) const {
  if (options_.hook.at != nullptr) options_.hook.at(options_.hook.context, point);
}

/// f(m, scratch) for m = first, first + step ... below `tokens`, shared among the pool's threads.
template <class F>
void AllReduceWorkspace::for_rows(std::int64_t first, std::int64_t step, std::int64_t tokens,
                                  F&& f) {
  const std::int64_t count = tokens > first ? (tokens - first + step - 1) / step : 0;
  if (options_.pool == nullptr || count <= 1) {
    const FloatEnvScope env;
    for (std::int64_t i = 0; i < count; ++i) f(first + i * step, scratch_[0]);
    return;
  }
  constexpr std::int64_t kRowsPerTask = 4;
  const std::int64_t tasks = (count + kRowsPerTask - 1) / kRowsPerTask;
  options_.pool->for_each(tasks, [&](std::int64_t task, int member) {
    const std::int64_t end = std::min(count, (task + 1) * kRowsPerTask);
    for (std::int64_t i = task * kRowsPerTask; i < end; ++i)
      f(first + i * step, scratch_[std::size_t(member)]);
  });
}

void AllReduceWorkspace::check(const AllReduceCall& call) const {
  call.check();
  call.check_values();
  const AllReduceCapacity needs = needs_of(call, group_.size());
  const std::int64_t bytes = allreduce_bank_bytes(needs), limit = allreduce_bank_bytes(capacity_);
  require(call.shape.hidden <= capacity_.hidden && bytes <= limit, "allreduce of ",
          call.shape.tokens, " tokens x ", call.shape.hidden, " ",
          to_string(wire_of(call.shape).dtype), " needs ", bytes, " bytes and rows of ",
          call.shape.hidden, "; the workspace holds ", limit, " bytes and rows of ",
          capacity_.hidden, " (", capacity_.max_tokens,
          " tokens); split the batch or build a larger one");
}

void AllReduceWorkspace::run(const AllReduceCall& call) {
  auto work = [&] {
    group_.check_alive("a fused all-reduce");
    check(call);
    run_checked(call);
  };
  group_.size() > 1 ? or_abort(group_, work) : work();
}

void AllReduceWorkspace::run_checked(const AllReduceCall& call) {
  if (call.norm) ops::clear_scale_padding(*call.norm, call.shape);
  if (group_.size() == 1) return run_alone(call);
  ++sequence_;
  needs_ = needs_of(call, group_.size());
  const AllReduceStrategy strategy = effective_strategy(call.shape, group_.size());
  const AllReduceWords words = allreduce_words(call, strategy);
  Header mine{kMagic, sequence_};
  std::copy(words.begin(), words.end(), mine.begin() + kFirstWord);
  mine[kScaleWord] = std::bit_cast<std::uint32_t>(given_scale_of(call));
  fault(AllReduceFault::kBegin);
  write_rows(call);
  for (int r = 0; r < group_.size(); ++r)
    std::copy(mine.begin(), mine.end(),
              memory_->at<std::uint32_t>(r, layout_.header(sequence_, group_.rank())));
  fault(AllReduceFault::kRowsWritten);
  show(kContributions);
  fault(AllReduceFault::kPublished);
  await(kContributions, &mine);
  if (strategy == AllReduceStrategy::kTwoShot) {
    reduce_owned(call);
    fault(AllReduceFault::kRowsReduced);
    show(kOwned);
    fault(AllReduceFault::kReducedShown);
    await(kOwned, nullptr);
    fault(AllReduceFault::kAllArrived);
    finish_two_shot(call);
  } else {
    catch_up_owned();
    fault(AllReduceFault::kAllArrived);
    finish_one_shot(call);
  }
  first_ = false;
}

void AllReduceWorkspace::run_alone(const AllReduceCall& call) {
  for_rows(0, 1, call.shape.tokens, [&](std::int64_t m, const RowScratch& s) {
    ops::local_row(call, kernels_, m, s.acc);
    finish_row(call, m, s);
  });
}

void AllReduceWorkspace::write_rows(const AllReduceCall& call) {
  const int me = group_.rank();
  for_rows(0, 1, call.shape.tokens, [&](std::int64_t m, const RowScratch& s) {
    ops::local_row(call, kernels_, m, s.acc);
    kernels_.store(wire_of(call.shape), s.acc, payload(me, m));
  });
}

void AllReduceWorkspace::show(int phase) {
  for (int r = 0; r < group_.size(); ++r) publish(flag(r, phase, group_.rank()), sequence_);
}

// A flag that stood still for 2^31 one-shot calls would count as ahead of the next two-shot. No
// peer writes it here: it does so behind this rank's contributions to a later call only.
void AllReduceWorkspace::catch_up_owned() {
  for (int r = 0; r < group_.size(); ++r)
    flag(group_.rank(), kOwned, r).store(sequence_, std::memory_order_relaxed);
}

void AllReduceWorkspace::await(int phase, const Header* mine) {
  const int me = group_.rank();
  Patience wait(group_, kPhases[phase],
                first_ ? group_.deadlines().warm_up : group_.deadlines().serving);
  for (int r = 0; r < group_.size(); ++r) {
    wait.until(flag(me, phase, r), sequence_, r);
    if (mine != nullptr) check_header(*mine, r);
  }
}

void AllReduceWorkspace::check_header(const Header& mine, int source) const {
  const auto* theirs = memory_->at<std::uint32_t>(group_.rank(), layout_.header(sequence_, source));
  for (std::size_t i = 0; i < mine.size(); ++i)
    require(theirs[i] == mine[i], "allreduce: the ranks differ: rank ", group_.rank(), " has ",
            header_name(i), " = ", mine[i], ", rank ", source, " has ", theirs[i],
            "; call all ranks alike");
}

void AllReduceWorkspace::sum_row(const AllReduceCall& call, std::int64_t m, float* acc) const {
  const ops::RowOf wire = wire_of(call.shape);
  std::fill_n(acc, wire.hidden, 0.0F);
  for (int r = 0; r < group_.size(); ++r)
    (call.shape.legacy_rounding ? kernels_.add_rounded : kernels_.add)(wire, payload(r, m), acc);
}

void AllReduceWorkspace::finish_row(const AllReduceCall& call, std::int64_t m,
                                    const RowScratch& s) const {
  const ops::RowOf t{call.shape.dtype, call.shape.hidden};
  if (call.output != nullptr) kernels_.store(t, s.acc, ops::row_of(call.output, call.shape, m));
  if (!call.norm) return;
  ops::residual_row(call, kernels_, m, s);
  if (call.norm->residual_out != nullptr)
    kernels_.store(t, s.p, ops::row_of(call.norm->residual_out, call.shape, m));
  ops::norm_row(call, kernels_, m, s);
}

void AllReduceWorkspace::finish_one_shot(const AllReduceCall& call) {
  for_rows(0, 1, call.shape.tokens, [&](std::int64_t m, const RowScratch& s) {
    sum_row(call, m, s.acc);
    finish_row(call, m, s);
  });
}

// What an owner hands on: the residual row and, where wanted, the sum's, from which receivers
// normalise; or the quantised row where nothing else is wanted.
void AllReduceWorkspace::reduce_owned(const AllReduceCall& call) {
  const int me = group_.rank();
  const ops::RowOf t{call.shape.dtype, call.shape.hidden};
  const std::int64_t row_bytes = t.hidden * std::int64_t(size_of(t.dtype));
  for_rows(me, group_.size(), call.shape.tokens, [&](std::int64_t m, const RowScratch& s) {
    sum_row(call, m, s.acc);
    std::byte* out = reduced(me, m);
    if (call.output != nullptr) kernels_.store(t, s.acc, call.norm ? out + row_bytes : out);
    if (!call.norm) return;
    ops::residual_row(call, kernels_, m, s);
    if (wants_rows(call)) return kernels_.store(t, s.p, out);
    ops::normalise_row(call, kernels_, s);
    ops::quantise_row(call, kernels_, s, quant_parts(call, out));
  });
}

void AllReduceWorkspace::finish_two_shot(const AllReduceCall& call) {
  const ops::RowOf t{call.shape.dtype, call.shape.hidden};
  const std::int64_t row_bytes = t.hidden * std::int64_t(size_of(t.dtype));
  for_rows(0, 1, call.shape.tokens, [&](std::int64_t m, const RowScratch& s) {
    std::byte* from = reduced(int(m % group_.size()), m);
    if (call.output != nullptr)
      std::memcpy(ops::row_of(call.output, call.shape, m), call.norm ? from + row_bytes : from,
                  std::size_t(row_bytes));
    if (!call.norm) return;
    if (!wants_rows(call))
      return ops::place_quant_row(*call.norm, call.shape, m, quant_parts(call, from));
    if (call.norm->residual_out != nullptr)
      std::memcpy(ops::row_of(call.norm->residual_out, call.shape, m), from,
                  std::size_t(row_bytes));
    if (!call.norm->wants_norm()) return;
    std::fill_n(s.p, t.hidden, -0.0F);  // keeps the sign of every zero that is added
    kernels_.add(t, from, s.p);
    ops::norm_row(call, kernels_, m, s);
  });
}

void allreduce_fusion(AllReduceWorkspace& workspace, const ops::AllReduceArgs& args) {
  workspace.run(args.call());
}
void allreduce_fusion(AllReduceWorkspace& workspace, const ops::ARResidualRMSNormArgs& args) {
  workspace.run(args.call());
}
void allreduce_fusion(AllReduceWorkspace& workspace, const ops::MoEReductionArgs& args) {
  workspace.run(args.call());
}
void allreduce_fusion(AllReduceWorkspace& workspace, const ops::MoEFinalizeArgs& args) {
  workspace.run(args.call());
}

}  // namespace switchyard::comm
