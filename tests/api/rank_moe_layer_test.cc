// SPDX-License-Identifier: Apache-2.0
// A layer over ranks by the installed headers: the bits of its contract in all modes, from every
// source of weights; several layers on one rank; changes between calls; mistakes.
#include "switchyard/api/rank_moe_layer.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>

#include "switchyard/api/allreduce.h"
#include "switchyard/api/behind_tensors.h"
#include "switchyard/api/checkpoint.h"
#include "switchyard/api/layer_arrays.h"
#include "switchyard/api/rank_state.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/core/preset.h"
#include "switchyard/core/shard.h"
#include "switchyard/eplb/balancer.h"
#include "switchyard/layer/rank_layer.h"
#include "tests/cases/rank_case.h"
#include "tests/cases/rank_layers.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using test::alone;
using test::Call;
using test::Mode;
using test::options_of;
using test::output_of;
using test::Parts;
using test::usage_error_of;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kRanks = 4;

/// This rank's outputs are those that the ranks' parts of `whole` make; parts that are forgotten
/// would show.
void expect_contract(Rank& rank, RankMoeLayer& layer, const MoeLayer& whole, const Parts& parts,
                     const Mode& m) {
  Call call(whole.impl(), tokens_of(m, rank.number()), seed_of(m, rank.number()));
  const std::vector<std::byte> want = expected_of_parts(parts, comm::Wire::kBf16, call);
  int shown = 0;
  for (int r = 0; r < rank.size(); ++r)
    shown += expected_of_parts(parts, comm::Wire::kBf16, call, r) != want ? 1 : 0;
  EXPECT_EQ(shown > 1, call.tokens > 0) << "forgotten ranks do not show";
  EXPECT_EQ(output_of(layer, call), want) << to_string(m.parallel) << ", rank " << rank.number();
}

/// As expect_contract() in every mode, with two layers on each rank in turns.
void expect_contract_in_all_modes(
    const MoeLayer& whole,
    const std::function<RankMoeLayer(Rank&, const RankBuildOptions&)>& make) {
  for (const Mode& four : test::kFourModes) {
    const Mode m = four.on(kRanks);
    const Parts parts = test::parts_of(whole.impl(), m, kRanks);
    on_rank_threads(kRanks, [&](Rank& rank) {
      RankMoeLayer first = make(rank, options_of(m)), second = make(rank, options_of(m));
      EXPECT_EQ(first.parallel(), m.parallel);
      EXPECT_EQ(first.strategy(), m.parallel == Parallel::kDep   ? "one_sided"
                                  : m.parallel == Parallel::kDtp ? "all_gather"
                                                                 : "all_reduce");
      EXPECT_EQ(first.leaf(), whole.leaf());
      for (RankMoeLayer* layer : {&first, &second, &first})
        expect_contract(rank, *layer, whole, parts, m);
    });
  }
}

TEST(RankMoeLayer, OfAPresetKeepsItsContractInAllModes) {
  expect_contract_in_all_modes(MoeLayer::from_preset("tiny", alone()),
                               [](Rank& rank, const RankBuildOptions& o) {
                                 return RankMoeLayer::from_preset(rank, "tiny", o);
                               });
}

TEST(RankMoeLayer, OfACheckpointKeepsItsContractInAllModes) {
  const Checkpoint checkpoint = Checkpoint::open(test::data_dir("mixtral"));
  expect_contract_in_all_modes(MoeLayer::from_checkpoint(checkpoint, 0, alone()),
                               [&](Rank& rank, const RankBuildOptions& o) {
                                 return RankMoeLayer::from_checkpoint(rank, checkpoint, 0, o);
                               });
}

/// Arrays of a small layer, each expert's gate, up and down on pages of its own.
class PagedArrays {
 public:
  PagedArrays() {
    a_.problem = make_preset("tiny");
    a_.problem.hidden = 128, a_.problem.inter = 64;  // 16 KiB a matrix: whole pages
    const std::int64_t experts = a_.problem.num_experts();
    bytes_ = std::size_t(a_.problem.hidden * a_.problem.inter) * 2;
    for (auto* data : {&gate_, &up_, &down_}) {
      *data = mmap(nullptr, bytes_ * std::size_t(experts), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (*data == MAP_FAILED) throw std::bad_alloc();
      auto* values = static_cast<std::uint16_t*>(*data);
      for (std::size_t i = 0; i < bytes_ / 2 * std::size_t(experts); ++i)
        values[i] =
            std::uint16_t(0x3c00 + (i * 37 + number_++) % 0x180) | (i % 3 == 0 ? 0x8000 : 0);
    }
    router_.resize(std::size_t(experts * a_.problem.hidden));
    for (std::size_t i = 0; i < router_.size(); ++i) router_[i] = float(i * 7 % 31) / 31 - 0.5F;
    a_.gate = gate_, a_.up = up_, a_.down = down_;
    a_.router_weight = router_.data();
  }
  ~PagedArrays() {
    for (void* data : {gate_, up_, down_})
      munmap(data, bytes_ * std::size_t(a_.problem.num_experts()));
  }
  PagedArrays(const PagedArrays&) = delete;
  PagedArrays& operator=(const PagedArrays&) = delete;

  const LayerArrays& arrays() const { return a_; }
  /// Whoever reads experts `first` to `last` - 1 from here on dies.
  void forbid(std::int64_t first, std::int64_t last) {
    for (void* data : {gate_, up_, down_})
      if (mprotect(static_cast<std::byte*>(data) + bytes_ * std::size_t(first),
                   bytes_ * std::size_t(last - first), PROT_NONE) != 0)
        throw std::runtime_error("mprotect failed");
  }

 private:
  LayerArrays a_;
  std::size_t bytes_ = 0, number_ = 0;
  void *gate_ = nullptr, *up_ = nullptr, *down_ = nullptr;
  std::vector<float> router_;
};

TEST(RankMoeLayer, OfArraysReadsTheRanksOwnExpertsOnly) {
  const Mode m{Parallel::kDep, 1};
  const PagedArrays whole_arrays;
  const MoeLayer whole = MoeLayer::from_arrays(whole_arrays.arrays(), alone());
  const BorrowedArrays borrowed(whole_arrays.arrays());
  Parts parts;
  for (int r = 0; r < kRanks; ++r) {
    layer::LayerOptions part = whole.impl().options();
    part.held = ep_shard(whole.problem().num_experts(), kRanks, r);
    parts.push_back(std::make_unique<layer::Layer>(borrowed.weights(), part));
  }
  on_rank_threads(kRanks, [&](Rank& rank) {
    PagedArrays mine;
    const std::int64_t experts = mine.arrays().problem.num_experts(), own = experts / kRanks;
    const std::int64_t first = own * rank.number();
    if (first > 0) mine.forbid(0, first);
    if (first + own < experts) mine.forbid(first + own, experts);
    RankMoeLayer layer = RankMoeLayer::from_arrays(rank, mine.arrays(), options_of(m));
    expect_contract(rank, layer, whole, parts, m);
  });
}

/// Bytes of this process's address space.
std::size_t address_space() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * std::size_t(sysconf(_SC_PAGESIZE));
}

// What the ranks exchange through is built once for layers whose calls need the same.
TEST(RankMoeLayer, LayersOfOneRankShareTheirExchange) {
  for (const Mode& four : test::kFourModes) {
    const Mode m = four.on(2);
    for (Ending ending : {Ending::kPlain, Ending::kFused}) {
      if (ending == Ending::kFused && m.own_tokens()) continue;
      on_rank_threads(2, [&](Rank& rank) {
        RankBuildOptions o = options_of(m, 2);
        o.max_tokens = 16384;  // 4 MiB of hidden states
        o.ending = ending;
        std::vector<RankMoeLayer> layers;
        std::vector<std::size_t> after;
        const auto note = [&] {
          rank.barrier();
          after.push_back(address_space());
          rank.barrier();
        };
        note();
        for (int i = 0; i < 3; ++i) {
          layers.push_back(RankMoeLayer::from_preset(rank, "tiny", o));
          note();
        }
        o.max_tokens *= 2;
        layers.push_back(RankMoeLayer::from_preset(rank, "tiny", o));
        note();
        const std::size_t first = after[1] - after[0], second = after[3] - after[2];
        EXPECT_GT(first, std::size_t(8) << 20) << to_string(m.parallel);
        EXPECT_LT(second, first / 4) << to_string(m.parallel) << ", " << to_string(ending);
        EXPECT_GT(after[4] - after[3], first) << "calls of twice the tokens need their own";
      });
    }
  }
}

TEST(RankMoeLayer, EndsInAFusedAllReduce) {
  const Mode m{Parallel::kTtp, 2};
  for (Ending ending : {Ending::kFused, Ending::kReduce})
    on_rank_threads(2, [&](Rank& rank) {
      RankBuildOptions o = options_of(m, 2);
      o.ending = ending;
      RankMoeLayer layer = RankMoeLayer::from_preset(rank, "tiny", o);
      const MoeLayer whole = MoeLayer::from_preset("tiny", alone());
      Call call(whole.impl(), test::kRankTokens, 30);
      BehindTensors behind(layer.problem().hidden, Dtype::kBf16, call.tokens, 3);
      HostBuffer workspace(layer.workspace_bytes());
      ForwardArgs args = call.args();
      args.workspace = workspace.bytes();
      layer.forward(args, behind.args());
      EXPECT_TRUE(behind.same_on_all(rank.state().group));
      const std::vector<std::byte> sum = output_of(layer, call);  // with nothing behind it
      EXPECT_LT(behind.rel_l2(sum), 0x1p-8);
      Call alone_call(whole.impl(), test::kRankTokens, 30);
      alone_call.run();
      EXPECT_LT(test::rel(call.values(), alone_call.values()), 0x1p-6) << "against one rank";
      std::vector<std::byte> none(sum.size());
      EXPECT_GT(behind.rel_l2(none), 0x1p-6) << "the layer's share would not show";
    });
}

// Dynamic load balancing as an engine does it: counts, a plan, a migration, and the same bits.
TEST(RankMoeLayer, ExpertsMigrateByWhatWasCounted) {
  constexpr int kSteps = 12;
  const Mode m{Parallel::kDep, 1};
  std::atomic<int> moved = 0;
  on_rank_threads(2, [&](Rank& rank) {
    RankBuildOptions o = options_of(m, 2);
    o.build.comm = "expert_major";  // sums in choice order, wherever experts stand
    RankMoeLayer fixed = RankMoeLayer::from_preset(rank, "tiny", o);
    o.build.slots = 10;
    o.balanced = true;
    RankMoeLayer live = RankMoeLayer::from_preset(rank, "tiny", o);
    const std::int64_t experts = live.problem().num_experts();
    eplb::Placement placement = eplb::linear_placement({experts, 10, 2}, 1);
    EXPECT_EQ(live.slot_experts(), placement.layers[0]);
    eplb::Balancer balancer(placement, {.window = 2, .warm_up = 2, .interval = 2});
    const MoeLayer whole = MoeLayer::from_preset("tiny", alone());
    for (int step = 0; step < kSteps; ++step) {
      Call call(whole.impl(), test::kRankTokens, std::uint64_t(50 + step * 2 + rank.number()));
      const std::vector<std::byte> want = output_of(fixed, call);
      EXPECT_EQ(output_of(live, call), want) << "step " << step;
      const std::vector<std::int64_t> counts = live.take_counts();
      std::int64_t all = 0;
      for (std::int64_t c : counts) all += c;
      EXPECT_EQ(all, 2 * test::kRankTokens * live.problem().top_k());
      balancer.add(0, counts);
      for (const eplb::Migration& migration : balancer.end_iteration()) {
        live.migrate(migration.slots);
        balancer.applied(migration);
        EXPECT_EQ(live.slot_experts(), migration.slots);
        ++moved;
      }
    }
    EXPECT_THAT(usage_error_of([&] { fixed.take_counts(); }), HasSubstr("balanced"));
  });
  EXPECT_GT(moved, 0) << "nothing was ever moved";
}

TEST(RankMoeLayer, AnUpdateIsThatOfALayerBuiltWithTheWeights) {
  constexpr std::int64_t kTokens = 17;  // so that expert 2 is chosen
  for (const Mode& four : {test::kFourModes[0], test::kFourModes[3]}) {
    const Mode m = four.on(2);
    test::TempDir dir;
    test::CheckpointEditor edited = test::CheckpointEditor::fixture("mixtral");
    const std::string experts = "model.layers.0.block_sparse_moe.experts.";
    for (const char* w : {".w1.weight", ".w2.weight", ".w3.weight"})
      edited.tensors.at(experts + "2" + w).bytes = edited.tensors.at(experts + "5" + w).bytes;
    edited.write(dir);
    const Checkpoint before = Checkpoint::open(test::data_dir("mixtral"));
    const Checkpoint after = Checkpoint::open(dir.path());
    RankBuildOptions o = options_of(m, 2);
    o.max_tokens = kTokens;
    on_rank_threads(2, [&](Rank& rank) {
      const MoeLayer whole = MoeLayer::from_checkpoint(before, 0, alone());
      RankMoeLayer layer = RankMoeLayer::from_checkpoint(rank, before, 0, o);
      RankMoeLayer built = RankMoeLayer::from_checkpoint(rank, after, 0, o);
      Call call(whole.impl(), kTokens);
      const std::vector<std::byte> old = output_of(layer, call), want = output_of(built, call);
      EXPECT_NE(old, want);
      layer.update_expert(2, after, 0);
      EXPECT_EQ(output_of(layer, call), want);
      auto raw = [&](const char* w) {
        return before.impl().layer(0).expert(2).*(std::string(w) == "up"
                                                      ? &checkpoint::ExpertWeights::up
                                                      : &checkpoint::ExpertWeights::down);
      };
      const formats::Matrix up = raw("up"), down = raw("down");
      const formats::Matrix gate = *before.impl().layer(0).expert(2).gate;
      layer.update_expert(
          2, {.gate = gate.codes.data(), .up = up.codes.data(), .down = down.codes.data()});
      EXPECT_EQ(output_of(layer, call), old);
    });
  }
}

TEST(RankMoeLayer, LeftToItselfEveryRankHoldsSomeExpertsAndHasItsOwnTokens) {
  on_rank_threads(2, [&](Rank& rank) {
    RankBuildOptions o;
    o.max_tokens = 4;
    EXPECT_EQ(RankMoeLayer::from_preset(rank, "tiny", o).parallel(), Parallel::kDep);
    o.build.tp = 2;
    EXPECT_EQ(RankMoeLayer::from_preset(rank, "tiny", o).parallel(), Parallel::kTtp);
    o.build.tp = 1;
    o.build.parallel = Parallel::kDtp;  // columns of every expert
    const RankMoeLayer cut = RankMoeLayer::from_preset(rank, "tiny", o);
    EXPECT_THAT(cut.report_json(), HasSubstr("\"tp\":2"));
  });
  on_rank_threads(1, [&](Rank& rank) {
    RankBuildOptions o;
    o.max_tokens = 4;
    o.build.parallel = Parallel::kDep;
    EXPECT_EQ(RankMoeLayer::from_preset(rank, "tiny", o).parallel(), Parallel::kTtp);
  });
}

/// What layer `seed` gives with nothing else on its rank.
std::vector<std::byte> alone_on_ranks(const RankBuildOptions& o, int ranks, int number,
                                      std::uint64_t seed, const MoeLayer& whole,
                                      std::int64_t tokens) {
  std::vector<std::byte> out;
  on_rank_threads(ranks, [&](Rank& rank) {
    RankBuildOptions own = o;
    own.build.seed = seed;
    RankMoeLayer layer = RankMoeLayer::from_preset(rank, "tiny", own);
    Call call(whole.impl(), tokens, seed + std::uint64_t(o.build.tp > 1 ? 0 : rank.number()));
    const std::vector<std::byte> got = output_of(layer, call);
    if (rank.number() == number) out = got;
  });
  return out;
}

// Layers of unlike weights, called in turns with unlike tokens through one exchange.
TEST(RankMoeLayer, SharedEndsKeepTheLayersApart) {
  const MoeLayer whole = MoeLayer::from_preset("tiny", alone());
  for (const test::Way& c : test::kWays) {
    RankBuildOptions o = options_of(c);
    std::vector<std::byte> want[2][2];  // by seed, rank
    for (int seed : {1, 2})
      for (int r : {0, 1})
        want[seed - 1][r] = alone_on_ranks(o, 2, r, std::uint64_t(seed), whole, 3 + seed);
    EXPECT_NE(want[0][0], want[1][0]);
    on_rank_threads(2, [&](Rank& rank) {
      std::vector<RankMoeLayer> layers;
      for (std::uint64_t seed : {1, 2}) {
        RankBuildOptions own = o;
        own.build.seed = seed;
        layers.push_back(RankMoeLayer::from_preset(rank, "tiny", own));
      }
      for (int seed : {1, 2, 2, 1, 2, 1}) {
        Call call(whole.impl(), 3 + seed,
                  std::uint64_t(seed) + std::uint64_t(c.mode.tp > 1 ? 0 : rank.number()));
        EXPECT_EQ(output_of(layers[std::size_t(seed - 1)], call), want[seed - 1][rank.number()])
            << to_string(c.mode.parallel) << " " << c.comm << " " << to_string(c.ending);
      }
    });
  }
}

// What is refused in front of the packing leaves the ranks to serve on.
TEST(RankMoeLayer, AfterRefusalsTheSameRanksServe) {
  const MoeLayer whole = MoeLayer::from_preset("tiny", alone());
  const Checkpoint checkpoint = Checkpoint::open(test::data_dir("mixtral"));
  on_rank_threads(2, [&](Rank& rank) {
    RankBuildOptions o = options_of({Parallel::kDep, 1}, 2);
    const auto refused = [&](const RankBuildOptions& with, const char* text) {
      EXPECT_THAT(usage_error_of([&] { RankMoeLayer::from_preset(rank, "tiny", with); }),
                  HasSubstr(text));
    };
    RankBuildOptions odd = o;
    if (rank.number() == 1) odd.build.calibration = {1, 2, 3};
    odd.build.format = "nvfp4";
    refused(odd, "calibration tokens of digest");
    odd.build.calibration = {1, 2, 3};
    refused(odd, "calibration holds 3 values");
    odd = o;
    if (rank.number() == 1) odd.max_tokens = 9;
    refused(odd, "max_tokens");
    RankMoeLayer layer = RankMoeLayer::from_checkpoint(rank, checkpoint, 0, o);
    // One rank's update fails, and then the two give unlike experts.
    const std::int64_t wrong = rank.number() == 1 ? 99 : 2;
    EXPECT_THAT(usage_error_of([&] { layer.update_expert(wrong, checkpoint, 0); }),
                HasSubstr("expert 99 is outside"));
    const formats::Matrix up = checkpoint.impl().layer(0).expert(2).up;
    const formats::Matrix other = checkpoint.impl().layer(0).expert(3).up;
    const formats::Matrix gate = *checkpoint.impl().layer(0).expert(2).gate;
    const formats::Matrix down = checkpoint.impl().layer(0).expert(2).down;
    EXPECT_THAT(usage_error_of([&] {
                  layer.update_expert(2, {.gate = gate.codes.data(),
                                          .up = (rank.number() == 1 ? other : up).codes.data(),
                                          .down = down.codes.data()});
                }),
                HasSubstr("weights whose digest"));
    RankMoeLayer good = RankMoeLayer::from_preset(rank, "tiny", o);
    FusedAllReduce all(rank, {.max_tokens = 1, .hidden = 4, .dtype = Dtype::kF32});
    Call call(whole.impl(), test::kRankTokens, 30);
    const std::vector<std::byte> out = output_of(good, call);
    const std::vector<float> x(4, 1);
    std::vector<float> sum(4);
    allreduce_fusion(all,
                     ops::AllReduceArgs{
                         {.tokens = 1, .hidden = 4, .dtype = Dtype::kF32}, {x.data()}, sum.data()});
    EXPECT_THAT(sum, testing::Each(2));
    EXPECT_EQ(output_of(good, call), out);
  });
}

TEST(RankMoeLayer, ThreadsThatReadUnlikeCheckpointsAreToldApart) {
  test::TempDir dir;
  test::CheckpointEditor edited = test::CheckpointEditor::fixture("mixtral");
  edited.tensors.at("model.layers.0.block_sparse_moe.experts.6.w2.weight").bytes[0] ^= 1;
  edited.write(dir);
  on_rank_threads(2, [&](Rank& rank) {
    const Checkpoint mine =
        Checkpoint::open(rank.number() == 1 ? dir.path() : test::data_dir("mixtral"));
    EXPECT_THAT(usage_error_of([&] {
                  RankMoeLayer::from_checkpoint(rank, mine, 0, options_of({Parallel::kDep, 1}, 2));
                }),
                HasSubstr("a checkpoint whose digest"));
  });
}

/// What a build on two ranks ends with, of which rank 1 changes the options.
template <class E>
std::string refusal(const std::function<void(RankBuildOptions&)>& all,
                    const std::function<void(RankBuildOptions&)>& rank_1 = nullptr,
                    const std::string& preset_of_1 = "tiny") {
  std::string texts[2];
  try {
    on_rank_threads(2, [&](Rank& rank) {
      RankBuildOptions o = options_of({Parallel::kDep, 1}, 2);
      all(o);
      if (rank.number() == 1 && rank_1) rank_1(o);
      try {
        RankMoeLayer::from_preset(rank, rank.number() == 1 ? preset_of_1 : "tiny", o);
      } catch (const E& e) {
        texts[rank.number()] = e.what();
        throw;
      }
    });
  } catch (const E&) {
    EXPECT_NE(texts[0], "") << "rank 0 was told nothing";
    EXPECT_NE(texts[1], "") << "rank 1 was told nothing";
    return texts[0];
  }
  ADD_FAILURE() << "a layer was built";
  return "";
}

TEST(RankMoeLayer, MistakesAreToldOnEveryRank) {
  const auto nothing = [](RankBuildOptions&) {};
  const auto usage = [](auto&&... with) { return refusal<UsageError>(with...); };
  EXPECT_THAT(usage([](RankBuildOptions& o) { o.build.ep = 3; }), HasSubstr("ep 3 x tp 1"));
  EXPECT_THAT(usage([](RankBuildOptions& o) { o.max_tokens = 0; }), HasSubstr("max_tokens = 0"));
  EXPECT_THAT(usage([](RankBuildOptions& o) { o.build.pool = std::make_shared<ThreadPool>(1); }),
              HasSubstr("one of its own"));
  EXPECT_THAT(usage([](RankBuildOptions& o) {
                o.slot_experts = {0, 1}, o.build.slots = 3;
              }),
              HasSubstr("slot_experts has 2"));
  EXPECT_THAT(usage([](RankBuildOptions& o) { o.ending = Ending::kFused; }),
              HasSubstr("finalize fused ends layers whose ranks hold the same tokens"));
  EXPECT_THAT(usage(nothing, [](RankBuildOptions& o) { o.max_tokens = 9; }),
              AllOf(HasSubstr("max_tokens"), HasSubstr("8"), HasSubstr("9")));
  EXPECT_THAT(usage(nothing, [](RankBuildOptions& o) { o.build.seed = 9; }), HasSubstr("seed"));
  EXPECT_THAT(usage(nothing, nullptr, "qwen3-30b-a3b"),
              AllOf(HasSubstr("tiny"), HasSubstr("qwen3-30b-a3b")));
  EXPECT_THAT(usage(nothing, nullptr, "tinny"), HasSubstr("tinny"));
  EXPECT_THAT(usage([](RankBuildOptions& o) {
                o.build.leaf = "switchyard.cpu.fused_moe.none", o.build.comm = "fused";
              }),
              HasSubstr("leave one of the two out"));
  EXPECT_THAT(refusal<CannotServe>([](RankBuildOptions& o) { o.build.comm = "nccl"; }),
              HasSubstr("strategy nccl cannot serve"));
}

TEST(RankMoeLayer, AMistakeInOneRanksCallEndsAllAndNewRanksServe) {
  const MoeLayer whole = MoeLayer::from_preset("tiny", alone());
  const Mode m{Parallel::kDep, 1};
  const auto run = [&](std::int64_t tokens_of_1) {
    on_rank_threads(2, [&](Rank& rank) {
      RankMoeLayer layer = RankMoeLayer::from_preset(rank, "tiny", options_of(m, 2));
      Call call(whole.impl(), rank.number() == 1 ? tokens_of_1 : 1);
      output_of(layer, call);
    });
  };
  EXPECT_THAT(usage_error_of([&] { run(test::kRankCapacity + 1); }),
              HasSubstr("exceeds the capacity 8"));
  run(test::kRankCapacity);
}

// A MoeLayer alone says where ranks are.
TEST(RankMoeLayer, AMoeLayerIsOfOneRank) {
  BuildOptions o = alone();
  o.ep = 2;
  try {
    MoeLayer::from_preset("tiny", o);
    ADD_FAILURE() << "a layer was built";
  } catch (const CannotServe& e) {
    EXPECT_THAT(e.what(), HasSubstr("build a RankMoeLayer on each of them"));
  }
}

}  // namespace
}  // namespace switchyard
