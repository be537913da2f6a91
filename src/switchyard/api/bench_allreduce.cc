// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/bench_allreduce.h"

#include <algorithm>
#include <cstring>

#include "switchyard/api/allreduce_traffic.h"
#include "switchyard/api/bench_allreduce_device.h"
#include "switchyard/api/call_memory.h"
#include "switchyard/api/machine.h"
#include "switchyard/api/moe_layer.h"
#include "switchyard/api/rank_run.h"
#include "switchyard/api/run_words.h"
#include "switchyard/api/time_summary.h"
#include "switchyard/base/check.h"
#include "switchyard/comm/fused_allreduce.h"
#include "switchyard/comm/mpi_group.h"
#include "switchyard/core/problem.h"
#include "switchyard/tune/timer.h"

namespace switchyard {
namespace {

using api::AllReduceTraffic;
using Pattern = ops::AllReduceFusionPattern;

constexpr std::int64_t kCheckedTokens = 8;
constexpr int kMinCalls = 5, kMaxCalls = 5000;
constexpr std::string_view kPhase = "bench allreduce";

constexpr BenchAllReduceRules kDeviceRules{
    .fused =
        "fused: one call, replayed from a CUDA graph of up to 100 equal calls, each behind the one "
        "before; of each replay the slowest rank's time, divided by its calls",
    .separate =
        "separate: NCCL's all-reduce, before it finalize or reduction (patterns 6, 7) and behind "
        "it "
        "residual, norm and quantisation in one kernel each, replayed likewise",
    .bytes = "bytes: what all ranks together write over the links; GB/s of one rank",
    .copy = "copy: not measured on GPUs"};

constexpr BenchAllReduceRules kRules{
    .fused =
        "fused: one call, from inputs in memory to the last output; of each call the slowest "
        "rank's time, ranks start together",
    .separate =
        "separate: what a caller without fusion runs, in steps that end in memory: finalize "
        "or reduction (patterns 6, 7), the same all-reduce as kAllReduce (of processes: "
        "MPI_Iallreduce of as many floats), residual and norm, quantisation",
    .bytes =
        "bytes: what all ranks together read and write at least: contributions, expert rows, "
        "residual, rows of their owners, outputs",
    .copy =
        "copy: memcpy of one tensor [tokens, hidden] by all ranks at once, read and write "
        "counted"};

/// The elementwise maximum of every rank's values, of which all have as many.
std::vector<double> max_over_ranks(comm::Group& g, std::vector<double> mine) {
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(double));
  for (const std::string& theirs : g.all_gather(bytes, kPhase)) {
    ensure(theirs.size() == bytes.size(), "bench allreduce: the ranks timed ", bytes.size(),
           " and ", theirs.size(), " bytes of times");
    for (std::size_t i = 0; i < mine.size(); ++i) {
      double value = 0;
      std::memcpy(&value, theirs.data() + i * sizeof value, sizeof value);
      mine[i] = std::max(mine[i], value);
    }
  }
  return mine;
}

/// The ranks that a bench asks for. Errors: UsageError.
RankTeam team_of(const BenchAllReduceOptions& o) {
  const int started = o.processes == nullptr ? 1 : o.processes->size();
  require(started == 1 || started == o.ranks, "ranks = ", o.ranks, " and the launcher started ",
          started, " processes; each process is a rank, start as many, or give no number of ranks");
  return RankTeam(o.processes, o.ranks);
}

/// Times of calls that all ranks make together, as many on each.
template <class F>
std::vector<double> time_calls(comm::Group& g, double seconds, F&& f) {
  auto timed = [&](int count) {
    std::vector<double> times;
    for (int i = 0; i < count; ++i) {
      g.barrier(kPhase);
      const double start = tune::now_us();
      f();
      times.push_back(tune::now_us() - start);
    }
    return max_over_ranks(g, std::move(times));
  };
  f();  // fresh pages
  const double one = std::max(tune::percentile(timed(3), 0.5), 0.1);
  return timed(int(std::clamp(seconds * 1e6 / one, double(kMinCalls), double(kMaxCalls))));
}

/// The unfused steps of one rank; each ends in memory.
class SeparateSteps {
 public:
  SeparateSteps(AllReduceTraffic& traffic, comm::AllReduceWorkspace& workspace, CpuIsa isa,
                const comm::Deadlines& deadlines, comm::MpiSession* mpi)
      : fused_(traffic.fused()),
        workspace_(workspace),
        mpi_(mpi),
        budget_(deadlines.serving),
        alone_group_(std::move(comm::make_thread_groups(1, deadlines)[0])),
        alone_(alone_group_, {1, fused_.shape.tokens, fused_.shape.hidden, fused_.shape.dtype},
               {.isa = isa}),
        kernels_(ops::row_kernels(isa)),
        norm_row_(std::size_t(fused_.shape.hidden)),
        scales_(std::size_t(std::max<std::int64_t>(fused_.shape.hidden, 4))) {
    const bool plain = std::holds_alternative<ops::PlainSource>(fused_.source);
    if (!plain) local_ = {{fused_.shape, fused_.source, traffic.contribution(), std::nullopt}};
    sum_ = {fused_.shape,
            plain ? std::get<ops::PlainSource>(fused_.source)
                  : ops::PlainSource{traffic.contribution()},
            traffic.sum(), std::nullopt};
    if (mpi_ != nullptr) prepare_mpi();
    if (!fused_.norm) return;
    ops::NormArgs norm = *fused_.norm;
    norm.quant = std::monostate{};
    // Without an output of its own the norm goes where the contribution was.
    if (norm.norm_out == nullptr) norm.norm_out = traffic.contribution();
    norm_ = {{fused_.shape, ops::PlainSource{traffic.sum()}, nullptr, norm}};
  }

  void run() {
    if (local_) alone_.run(*local_);
    if (mpi_ != nullptr)
      mpi_->sum(floats_, budget_);
    else
      workspace_.run(sum_);
    if (norm_) alone_.run(*norm_);
    if (norm_ && fused_.norm->quant_kind() != ops::AllReduceQuant::kNone) quantise();
  }

 private:
  /// MPI sums floats: what it is given is widened here, and the steps behind it read the sum in T
  /// that is made here, neither of which is timed.
  void prepare_mpi() {
    if (local_) alone_.run(*local_);
    workspace_.run(sum_);
    const void* from = std::get<ops::PlainSource>(sum_.source).input;
    std::vector<float>& mine = floats_->mine;
    mine.resize(std::size_t(fused_.shape.tokens * fused_.shape.hidden));
    floats_->all.resize(mine.size());
    for (std::size_t i = 0; i < mine.size(); ++i)
      mine[i] = load_element(fused_.shape.dtype, from, std::int64_t(i));
  }
  void quantise() {
    const ops::CallShape& s = fused_.shape;
    const ops::RowOf t{s.dtype, s.hidden};
    ops::clear_scale_padding(*fused_.norm, s);
    std::vector<std::uint8_t>& codes = codes_;
    codes.resize(std::size_t(ops::quant_code_bytes(*fused_.norm, s.hidden)));
    const ops::RowScratch scratch{nullptr, nullptr, norm_row_.data(), scales_.data()};
    for (std::int64_t m = 0; m < s.tokens; ++m) {
      std::fill(norm_row_.begin(), norm_row_.end(), -0.0F);
      kernels_.add(t, ops::row_of(std::as_const(norm_->norm->norm_out), s, m), norm_row_.data());
      const ops::QuantRow row{codes.data(), scales_.data()};
      ops::quantise_row(fused_, kernels_, scratch, row);
      ops::place_quant_row(*fused_.norm, s, m, row);
    }
  }

  ops::AllReduceCall fused_;
  comm::AllReduceWorkspace& workspace_;
  comm::MpiSession* mpi_;
  std::chrono::milliseconds budget_;
  std::shared_ptr<comm::SummedFloats> floats_ = std::make_shared<comm::SummedFloats>();
  comm::Group alone_group_;
  comm::AllReduceWorkspace alone_;
  const ops::RowKernels& kernels_;
  std::optional<ops::AllReduceCall> local_, norm_;
  ops::AllReduceCall sum_;
  std::vector<float> norm_row_;
  std::vector<std::uint8_t> scales_, codes_;
};

/// Bytes that all ranks read and write at least.
std::int64_t bytes_of(const BenchAllReduceOptions& o, const AllReduceTraffic& traffic,
                      std::int64_t tokens, ops::AllReduceStrategy strategy) {
  const std::int64_t tensor = tokens * o.hidden * std::int64_t(size_of(o.dtype));
  const std::int64_t residual = o.pattern == Pattern::kAllReduce ? 0 : 1;
  std::int64_t columns = o.pattern == Pattern::kMoEReductionARResidualRMSNorm  ? o.experts
                         : o.pattern == Pattern::kMoEFinalizeARResidualRMSNorm ? o.top_k
                                                                               : 1;
  columns += o.shared ? 1 : 0;
  const std::int64_t n = o.ranks;
  std::int64_t tensors = n * columns;  // read into contributions
  if (n == 1) {
    tensors += residual;
  } else if (strategy == ops::AllReduceStrategy::kTwoShot) {
    tensors += n + n + residual + 1 + n;  // written; summed by owners; owners' rows
  } else {
    tensors += n + n * n + n * residual;
  }
  return tensors * tensor + n * traffic.output_bytes();
}

/// One rank's part of a row; rank 0 writes it.
void run_row(comm::Group& g, const BenchAllReduceOptions& o, std::int64_t tokens,
             AllReduceRow& row) {
  const Environment env = environment();
  const CpuIsa isa = running_tier(env);
  AllReduceTraffic traffic(o, tokens, g.rank());
  comm::AllReduceWorkspace workspace(g, {o.ranks, tokens, o.hidden, o.dtype}, {.isa = isa});
  const ops::AllReduceCall call = traffic.fused();
  const std::vector<double> fused = time_calls(g, o.seconds, [&] { workspace.run(call); });
  const std::vector<std::string> digests = g.all_gather(traffic.digest(), kPhase);
  if (g.rank() == 0) {
    row.checked_tokens = std::min(tokens, kCheckedTokens);
    row.errors = api::judge_traffic(o, row.checked_tokens, traffic);
  }
  g.barrier(kPhase);
  comm::MpiSession* mpi = team_of(o).processes() ? o.processes->session() : nullptr;
  SeparateSteps steps(traffic, workspace, isa, g.deadlines(), mpi);
  const std::vector<double> separate = time_calls(g, o.seconds, [&] { steps.run(); });
  const std::size_t bytes = std::size_t(tokens * o.hidden) * size_of(o.dtype);
  const std::vector<double> copy = time_calls(g, o.seconds / 4, [&] {
    if (bytes > 0) std::memcpy(traffic.sum(), traffic.contribution(), bytes);
  });
  if (g.rank() != 0) return;
  const ops::AllReduceStrategy strategy = comm::effective_strategy(call.shape, o.ranks);
  row.tokens = tokens;
  row.strategy = o.ranks == 1 ? "local" : std::string(ops::to_string(strategy));
  row.fused = summary_of(fused);
  row.separate = summary_of(separate);
  row.separate_by = mpi != nullptr ? "MPI_Iallreduce of floats" : "own steps";
  row.equal_ranks = std::all_of(digests.begin(), digests.end(),
                                [&](const std::string& d) { return d == digests[0]; });
  row.bytes = bytes_of(o, traffic, tokens, strategy);
  row.gbps = double(row.bytes) / row.fused.p50 * 1e-3;
  row.copy_gbps = double(2 * o.ranks) * double(bytes) / tune::percentile(copy, 0.5) * 1e-3;
  row.share_of_copy = bytes == 0 ? 0 : row.gbps / row.copy_gbps;
}

}  // namespace

void BenchAllReduceOptions::check() const {
  auto in_range = [](std::string_view name, std::int64_t value, std::int64_t least,
                     std::int64_t most) {
    require(value >= least && value <= most, name, " = ", value, " is outside ", least, "..", most);
  };
  in_range("ranks", ranks, 1, ops::kMaxAllReduceRanks);
  in_range("hidden", hidden, 1, kMaxWidth);
  in_range("top_k", top_k, 1, 1024);
  in_range("experts", experts, 1, 65536);
  require(!tokens.empty(), "no tokens are given; name at least one number of them");
  for (std::int64_t t : tokens) in_range("tokens", t, 0, std::int64_t(1) << 20);
  require(api::is_moe(pattern) || (!shared && !routed_scaling_factor),
          shared ? "shared" : "routed_scaling_factor", " is of patterns 6 and 7; ",
          ops::to_string(pattern), " has nothing to apply it to");
  require(api::is_moe(pattern) || quant == ops::AllReduceQuant::kNone || quant == quant_of(pattern),
          "quant ", ops::to_string(quant), " is of patterns 6 and 7; ", ops::to_string(pattern),
          " quantises as its name says");
}

double bench_allreduce_bytes(const BenchAllReduceOptions& o, std::int64_t tokens) {
  // Input, residual, contribution, sum, three outputs, codes and their scales, and the workspace's
  // two banks of a contribution and an owner's rows.
  constexpr double kTensors = 15;
  double rows = 0;
  if (o.pattern == Pattern::kMoEReductionARResidualRMSNorm) rows = double(o.experts);
  if (o.pattern == Pattern::kMoEFinalizeARResidualRMSNorm) rows = double(o.top_k);
  const double row = double(o.hidden) * double(size_of(o.dtype));
  return double(o.ranks) * double(tokens) * row * (kTensors + rows);
}

bool AllReduceRow::ok() const {
  return equal_ranks &&
         std::all_of(errors.begin(), errors.end(), [](const OutputError& e) { return e.ok(); });
}

const BenchAllReduceRules& bench_allreduce_rules(Device device) {
  return device == Device::kCuda ? kDeviceRules : kRules;
}

namespace {

/// Whether this machine can run patterns between GPUs at all.
Eligibility gpus_here(std::int64_t ranks) {
  const Environment env = environment();
  return api::gpus_join(
      env, env.num_gpus > 0 ? resolve::probe_gpus().gaps : std::vector<resolve::PeerGap>(), ranks);
}

}  // namespace

std::vector<PatternVerdict> judge_allreduce(Device device) {
  constexpr std::int64_t kRanks = 2;
  std::vector<PatternVerdict> out;
  const Eligibility machine = device == Device::kCuda ? gpus_here(kRanks) : Eligibility::yes();
  for (int value = 0; value < ops::kNumAllReducePatterns; ++value) {
    const Pattern pattern = ops::to_allreduce_pattern(value);
    Eligibility verdict =
        ops::supports({.pattern = pattern, .ranks = kRanks, .hidden = 128, .device = device});
    out.push_back({pattern, device, verdict.eligible() ? machine : verdict});
  }
  return out;
}

namespace {

/// Errors: UsageError for a row that this host has no memory for.
void check_memory(const BenchAllReduceOptions& o) {
  for (std::int64_t tokens : o.tokens)
    api::CallMemory{bench_allreduce_bytes(o, tokens), tokens, o.hidden, o.ranks}.check();
}

}  // namespace

namespace {

/// What the processes must have been asked alike, before any of it is judged.
void agree_on(const BenchAllReduceOptions& o) {
  if (o.processes == nullptr) return;
  std::string tokens;
  for (std::int64_t t : o.tokens) tokens += cat(tokens.empty() ? "" : ",", t);
  std::vector<Processes::Agreed> words = {
      {"the command", "bench allreduce"},
      {"pattern", cat(int(o.pattern))},
      {"tokens", tokens},
      {"hidden", cat(o.hidden)},
      {"dtype", std::string(to_string(o.dtype))},
      {"ranks", cat(o.ranks)},
      {"strategy", std::string(ops::to_string(o.strategy))},
      {"top_k", cat(o.top_k)},
      {"experts", cat(o.experts)},
      {"routed scaling factor",
       o.routed_scaling_factor ? cat(*o.routed_scaling_factor) : std::string("none")},
      {"quant", std::string(ops::to_string(o.quant))},
      {"scale layout", std::string(to_string(o.scale_layout))},
      {"shared", o.shared ? "with" : "without"},
      {"device", std::string(to_string(o.device))},
      {"seconds", cat(o.seconds)},
      {"seed", cat(o.seed)}};
  for (Processes::Agreed& word : switch_words()) words.push_back(std::move(word));
  o.processes->agree(words);
}

}  // namespace

BenchAllReduceResult bench_allreduce(const BenchAllReduceOptions& options) {
  agree_on(options);
  options.check();
  const Eligibility verdict = ops::supports({.pattern = options.pattern,
                                             .dtype = options.dtype,
                                             .ranks = options.ranks,
                                             .hidden = options.hidden,
                                             .layout = options.scale_layout,
                                             .quant = options.quant,
                                             .device = options.device});
  if (!verdict.eligible())
    throw CannotServe(cat(to_string(verdict.reason()), ": ", verdict.detail()), "{}");
  const bool gpus = options.device == Device::kCuda;
  if (gpus) {
    const Eligibility here = gpus_here(options.ranks);
    if (!here.eligible()) throw DeviceError(cat("cuda: ", here.detail()));
  }
  RankTeam team = team_of(options);
  check_memory(options);
  BenchAllReduceResult out{
      .ok = true,
      .pattern = std::string(ops::to_string(options.pattern)),
      .quant = std::string(ops::to_string(api::quant_of(options))),
      .isa = gpus ? "sm_90a" : std::string(to_string(running_tier(environment()))),
      .carriers = team.carriers(),
      .device = options.device,
      .ranks = options.ranks,
      .hidden = options.hidden};
  for (std::int64_t tokens : options.tokens) {
    if (options.progress) options.progress(cat("all-reduce of ", tokens, " tokens"));
    AllReduceRow row;
    team.each([&](comm::Group& group) {
      gpus ? api::run_device_row(group, options, tokens, row)
           : run_row(group, options, tokens, row);
    });
    if (team.processes() && options.processes->rank() != 0) continue;
    out.ok = out.ok && row.ok();
    out.rows.push_back(std::move(row));
  }
  return out;
}

}  // namespace switchyard
