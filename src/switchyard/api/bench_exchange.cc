// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/bench_exchange.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "switchyard/api/bench_session.h"
#include "switchyard/api/call_memory.h"
#include "switchyard/api/machine.h"
#include "switchyard/api/moe_layer.h"
#include "switchyard/api/time_summary.h"
#include "switchyard/base/check.h"
#include "switchyard/comm/factory.h"
#include "switchyard/comm/thread_team.h"
#include "switchyard/core/preset.h"
#include "switchyard/tune/copy_rate.h"
#include "switchyard/tune/timer.h"

namespace switchyard {
namespace {

constexpr int kMinCalls = 5, kMaxCalls = 5000, kWarmUp = 2, kCopySamples = 3;
constexpr std::int64_t kLeastCopied = std::int64_t(1) << 20;

constexpr ExchangeRules kRules{
    .time =
        "each phase begins behind a barrier and lasts from the first rank's start to the last "
        "one's end; ranks are threads, which share the CPUs where there are more ranks than CPUs",
    .bytes =
        "rows delivered to their receivers with their scales, a rank's own included, and rows of "
        "shares read back; ids, weights and headers are not counted",
    .copy =
        "memcpy between buffers that no cache holds, by one thread per CPU; a byte copied counts "
        "once",
    .shares =
        "the experts' shares are written before the first exchange and stay where they are; a sum "
        "ends as a row of fp32 in the memory of its rank"};

/// The problem and deployment that the gates judge.
Problem problem_of(const BenchExchangeOptions& o) {
  Problem p = make_preset("tiny");
  p.hidden = o.hidden;
  p.routing = make_routing(RoutingMethodType::kRenormalize, o.experts, o.top_k);
  p.combine = o.combine;
  p.check();
  return p;
}

Deployment deployment_of(const BenchExchangeOptions& o) {
  Deployment d;
  d.ep = o.ranks;
  d.parallel = Parallel::kDep;
  d.env = environment();
  d.check();
  return d;
}

resolve::StrategyVerdict to_verdict(const comm::Verdict& v) {
  resolve::StrategyVerdict out;
  out.strategy = std::string(v.strategy->name);
  if (!v.eligibility.eligible()) {
    out.reason = v.eligibility.reason();
    out.detail = v.eligibility.detail();
  }
  return out;
}

/// Start and end of both phases of every exchange, as one rank saw them. Units: µs.
struct Times {
  std::vector<double> dispatch_start, dispatch_end, combine_start, combine_end;
  void reserve() {
    for (auto* v : {&dispatch_start, &dispatch_end, &combine_start, &combine_end})
      v->reserve(kMaxCalls);
  }
};

/// Takes every sum into its place.
struct Sums {
  std::vector<float> rows;
  std::int64_t hidden;
  comm::RowSink sink() {
    return {this, [](void* self, std::int64_t token, const float* sum) {
              auto& s = *static_cast<Sums*>(self);
              std::memcpy(s.rows.data() + token * s.hidden, sum, std::size_t(s.hidden) * 4);
            }};
  }
};

/// What all ranks of one row share.
struct Run {
  const comm::Strategy* strategy = nullptr;
  const api::TrafficSpec* spec = nullptr;
  double seconds = 0;
  std::atomic<bool> go{true};
  std::vector<Times> times{};
  std::vector<std::int64_t> received{}, needed{}, checked{}, wrong{};
  std::pair<std::size_t, std::size_t> memory{};
};

void run_rank(Run& run, comm::Group& group) {
  constexpr const char* kPhase = "benchmark of an exchange";
  const std::size_t me = std::size_t(group.rank());
  const comm::Contract& contract = run.strategy->contract;
  auto exchange = make_exchange(*run.strategy, group, run.spec->shape);
  const api::Traffic traffic(*run.spec, group.rank());
  const std::int64_t hidden = run.spec->shape.hidden;
  Sums sums{std::vector<float>(std::size_t(run.spec->shape.capacity * hidden)), hidden};
  Times& times = run.times[me];
  times.reserve();
  if (me == 0) run.memory = exchange->memory_bytes();
  run.needed[me] = traffic.rows_needed(contract);
  run.checked[me] = traffic.checked();
  const double begin = tune::now_us();
  for (int call = 0;; ++call) {
    if (me == 0)
      run.go = call < kWarmUp + kMinCalls ||
               (call < kWarmUp + kMaxCalls && tune::now_us() - begin < run.seconds * 1e6);
    group.barrier(kPhase);
    if (!run.go) break;
    const double t0 = tune::now_us();
    comm::Ticket ticket = exchange->dispatch(traffic.args());
    const double t1 = tune::now_us();
    if (call == 0) {
      run.received[me] = ticket.received().num_rows;
      traffic.serve(ticket.received(), contract);
    }
    group.barrier(kPhase);
    const double t2 = tune::now_us();
    exchange->combine(std::move(ticket), sums.sink());
    const double t3 = tune::now_us();
    if (call == 0) run.wrong[me] = traffic.wrong(sums.rows, contract);
    if (call < kWarmUp) continue;
    times.dispatch_start.push_back(t0);
    times.dispatch_end.push_back(t1);
    times.combine_start.push_back(t2);
    times.combine_end.push_back(t3);
  }
  run.wrong[me] = std::max(run.wrong[me], traffic.wrong(sums.rows, contract));
  group.barrier(kPhase);  // nobody's memory goes while another reads it
}

/// Runs every rank on a thread of its own. Errors: as comm::run_on_threads().
void run_ranks(Run& run, int ranks, const comm::Deadlines& deadlines) {
  run.times.resize(std::size_t(ranks));
  for (auto* v : {&run.received, &run.needed, &run.checked, &run.wrong})
    v->resize(std::size_t(ranks));
  std::vector<comm::Group> groups = comm::make_thread_groups(ranks, deadlines);
  comm::run_on_threads(groups, [&](comm::Group& group) { run_rank(run, group); });
}

std::int64_t sum_of(const std::vector<std::int64_t>& v) {
  std::int64_t out = 0;
  for (std::int64_t x : v) out += x;
  return out;
}

BenchExchangeRow row_of(const Run& run) {
  const comm::ExchangeShape& s = run.spec->shape;
  std::vector<double> dispatch, combine, total;
  for (std::size_t i = 0; i < run.times[0].dispatch_start.size(); ++i) {
    auto span = [&](std::vector<double> Times::*start, std::vector<double> Times::*end) {
      double first = (run.times[0].*start)[i], last = (run.times[0].*end)[i];
      for (const Times& t : run.times) {
        first = std::min(first, (t.*start)[i]);
        last = std::max(last, (t.*end)[i]);
      }
      return last - first;
    };
    dispatch.push_back(span(&Times::dispatch_start, &Times::dispatch_end));
    combine.push_back(span(&Times::combine_start, &Times::combine_end));
    total.push_back(dispatch.back() + combine.back());
  }
  BenchExchangeRow out;
  out.strategy = std::string(run.strategy->name);
  out.tokens = s.capacity;
  out.dispatch = summary_of(dispatch);
  out.combine = summary_of(combine);
  out.total = summary_of(total);
  out.dispatch_rows = sum_of(run.received);
  out.combine_rows = sum_of(run.needed);
  out.dispatch_bytes = out.dispatch_rows * (s.row_bytes + s.scale_bytes);
  out.combine_bytes = out.combine_rows * s.share_bytes;
  out.gbps = double(out.dispatch_bytes + out.combine_bytes) / out.total.p50 * 1e-3;
  out.shared_bytes = std::int64_t(run.memory.first);
  out.own_bytes = std::int64_t(run.memory.second);
  out.checked_tokens = sum_of(run.checked);
  out.wrong_tokens = sum_of(run.wrong);
  return out;
}

/// The strategies to time, and all verdicts. Errors: CannotServe.
std::vector<const comm::Strategy*> to_time(const BenchExchangeOptions& o, BenchExchangeResult& out,
                                           const Deployment& d) {
  const bool all = o.strategy == "all";
  const std::string pin = all ? "auto" : pinned_strategy(d.env, o.strategy);
  const comm::Choice choice = comm::choose(problem_of(o), d, pin);
  if (choice.strategy == &comm::fused())
    throw CannotServe(
        "strategy fused is a leaf that exchanges tokens itself, there is no exchange "
        "to time without its experts; time a whole layer with `run`",
        "{}");
  std::vector<const comm::Strategy*> strategies;
  for (const comm::Verdict& v : choice.verdicts) {
    out.verdicts.push_back(to_verdict(v));
    if (all && v.eligibility.eligible()) strategies.push_back(v.strategy);
  }
  if (!all && choice.strategy != nullptr) {
    strategies.push_back(choice.strategy);
    out.chosen = std::string(choice.strategy->name);
  }
  if (strategies.empty())
    throw CannotServe(cat("no exchange strategy can serve: ", out.verdicts.front().strategy, ": ",
                          out.verdicts.front().detail),
                      "{}");
  return strategies;
}

api::TrafficSpec spec_of(const BenchExchangeOptions& o, std::int64_t tokens) {
  api::TrafficSpec spec{.shape = {.ep = o.ranks,
                                  .slots = o.experts,
                                  .top_k = o.top_k,
                                  .capacity = tokens,
                                  .hidden = o.hidden},
                        .payload = o.payload,
                        .pattern = o.pattern,
                        .wire = comm::to_wire(o.combine, Dtype::kBf16),
                        .seed = o.seed};
  api::fit_shape(spec);
  return spec;
}

/// Errors:  UsageError for tokens that this host has no memory for.
void check_memory(const BenchExchangeOptions& o) {
  for (std::int64_t tokens : o.tokens)
    api::CallMemory{bench_exchange_bytes(o, tokens), tokens, o.hidden, o.ranks}.check();
}

void check(const BenchExchangeOptions& o) {
  require(o.ranks >= 2 && o.ranks <= comm::kMaxGroupRanks, "bench exchange: ranks = ", o.ranks,
          " is outside 2..", comm::kMaxGroupRanks, "; an exchange joins two or more");
  require(o.hidden >= 32 && o.hidden <= kMaxWidth, "bench exchange: hidden = ", o.hidden,
          " is outside 32..", kMaxWidth);
  require(o.payload != ExchangePayload::kNvfp4 || o.hidden % 2 == 0,
          "bench exchange: hidden = ", o.hidden,
          " is odd; an nvfp4 payload needs an even one (two codes share a byte)");
  require(!o.tokens.empty(), "bench exchange: no tokens are given; name at least one count");
  for (std::int64_t tokens : o.tokens)
    require(tokens >= 1, "bench exchange: tokens = ", tokens, "; a call of none takes no time");
  require(o.most_copied >= kLeastCopied, "bench exchange: most_copied = ", o.most_copied,
          " bytes; a sample of the copy rate takes at least ", kLeastCopied);
  require(o.seconds > 0 && o.seconds <= 3600, "bench exchange: seconds = ", o.seconds,
          "; it must be above 0, at most 3600");
}

}  // namespace

const ExchangeRules& exchange_rules() { return kRules; }

double bench_exchange_bytes(const BenchExchangeOptions& o, std::int64_t tokens) {
  const comm::ExchangeShape s = spec_of(o, tokens).shape;
  const double row = double(s.row_bytes + s.scale_bytes);
  const double given = row + double(o.hidden) * 4;  // the rows that are sent, the sums
  // A token is sent to k ranks at most, and its place is kept for all that may come.
  const double held = double(std::min(o.ranks, o.top_k)) * (row + double(s.share_bytes));
  return double(o.ranks) * double(tokens) * (given + held);
}

BenchExchangeResult bench_exchange(const BenchExchangeOptions& o) {
  check(o);
  BenchExchangeResult out;
  const Deployment deployment = deployment_of(o);
  const std::vector<const comm::Strategy*> strategies = to_time(o, out, deployment);
  check_memory(o);
  ThreadPool pool(std::clamp(deployment.env.num_cpus, 1, 1024));
  out.cpus = pool.size();
  out.copy_bytes = std::min(o.most_copied, std::int64_t(roof_stream_bytes(deployment.env)));
  tune::CopyMeter copy(pool, std::size_t(out.copy_bytes));
  copy.sample(kCopySamples);
  for (std::int64_t tokens : o.tokens)
    for (const comm::Strategy* strategy : strategies) {
      if (o.progress) o.progress(cat(strategy->name, " of ", tokens, " tokens"));
      const api::TrafficSpec spec = spec_of(o, tokens);
      Run run{.strategy = strategy, .spec = &spec, .seconds = o.seconds};
      try {
        run_ranks(run, int(o.ranks), comm::deadlines_of(deployment.env));
        out.rows.push_back(row_of(run));
      } catch (const UsageError& e) {
        out.skipped.push_back({std::string(strategy->name), tokens, e.what()});
      }
      copy.sample(1);
    }
  copy.sample(kCopySamples);
  out.copy_gbps = copy.gbps();
  out.copy_start = copy.early(kCopySamples);
  out.copy_end = copy.late(kCopySamples);
  out.copy_samples = copy.samples();
  for (BenchExchangeRow& row : out.rows) row.share_of_copy = row.gbps / out.copy_gbps;
  require(!out.rows.empty(), "bench exchange: ", out.skipped.front().strategy, ": ",
          out.skipped.front().reason);
  out.ok = std::all_of(out.rows.begin(), out.rows.end(), [](const auto& r) { return r.ok(); });
  return out;
}

}  // namespace switchyard
