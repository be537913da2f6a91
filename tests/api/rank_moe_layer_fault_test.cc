// SPDX-License-Identifier: Apache-2.0
// Calls on ranks that must not be made: after one that failed, of unlike layers, beside another.
#include <gmock/gmock.h>

#include <algorithm>

#include "switchyard/api/allreduce.h"
#include "switchyard/api/rank_moe_layer.h"
#include "tests/cases/rank_case.h"
#include "tests/cases/rank_layers.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using test::alone;
using test::Call;
using test::Mode;
using test::options_of;
using test::output_of;
using test::usage_error_of;
using testing::AllOf;
using testing::HasSubstr;

// A second call on a rank would find the exchange in use.
TEST(RankMoeLayerFault, CallsOfOneRankThatOverlapAreRefused) {
  on_rank_threads(1, [](Rank& rank) {
    RankBuildOptions o;
    o.max_tokens = 4;
    const MoeLayer whole = MoeLayer::from_preset("tiny", alone());
    struct Inner {
      RankMoeLayer* layer = nullptr;
      Call* call = nullptr;
      std::string refusal;
    } inner;
    Call call(whole.impl(), 2), other(whole.impl(), 2);
    o.finalize = {&inner, [](void* context, const DispatchedRows& r) {
                    auto& in = *static_cast<Inner*>(context);
                    in.refusal = usage_error_of([&] { output_of(*in.layer, *in.call); });
                    std::fill_n(r.sum, r.tokens * r.width, 0.0F);
                  }};
    RankMoeLayer layer = RankMoeLayer::from_preset(rank, "tiny", o);
    o.finalize = {};
    RankMoeLayer second = RankMoeLayer::from_preset(rank, "tiny", o);
    inner.layer = &second, inner.call = &other;
    output_of(layer, call);
    EXPECT_THAT(inner.refusal, HasSubstr("is in another call"));
    layer = std::move(second);
    EXPECT_EQ(output_of(layer, call), other.run())
        << "and serves on; one rank has the layer's bits";
  });
}

/// No rank has all of a token's stages: nothing is written, and nothing left as it was.
TEST(RankMoeLayerFault, AStageCaptureIsRefused) {
  const MoeLayer whole = MoeLayer::from_preset("tiny", alone());
  for (const Mode& m : test::kFourModes)
    on_rank_threads(2, [&](Rank& rank) {
      RankMoeLayer layer = RankMoeLayer::from_preset(rank, "tiny", options_of(m.on(2), 2));
      Call call(whole.impl(), 2);
      HostBuffer workspace(layer.workspace_bytes());
      StageCapture capture;
      ForwardArgs args = call.args();
      args.workspace = workspace.bytes();
      args.capture = &capture;
      std::string text;
      try {
        layer.forward(args);
      } catch (const Error& e) {
        text = e.what();
      }
      EXPECT_THAT(text, HasSubstr("a stage capture is one rank's")) << to_string(m.parallel);
    });
}

/// Calls after one that failed, on ranks that caught it: none may pair with what it left.
TEST(RankMoeLayerFault, AfterAFailedCallEveryCallFails) {
  const MoeLayer whole = MoeLayer::from_preset("tiny", alone());
  for (const Mode& four : test::kFourModes)
    for (Ending ending : {Ending::kPlain, Ending::kFused, Ending::kReduce}) {
      const Mode m = four.on(2);
      if (ending != Ending::kPlain && m.own_tokens()) continue;
      on_rank_threads(2, [&](Rank& rank) {
        RankBuildOptions o = options_of(m, 2);
        o.ending = ending;
        RankMoeLayer layer = RankMoeLayer::from_preset(rank, "tiny", o);
        FusedAllReduce all(rank, {.max_tokens = 1, .hidden = 4, .dtype = Dtype::kF32});
        Call good(whole.impl(), 5), bad(whole.impl(), test::kRankCapacity + 1);
        output_of(layer, good);
        EXPECT_THROW(output_of(layer, rank.number() == 1 ? bad : good), Error);
        for (int i = 0; i < 4; ++i)
          EXPECT_THROW(output_of(layer, good), DeviceError)
              << to_string(m.parallel) << ", " << to_string(ending) << ", call " << i;
        EXPECT_THROW(rank.barrier(), DeviceError);
        const std::vector<float> x(4, 1);
        std::vector<float> sum(4);
        const ops::AllReduceArgs args{
            {.tokens = 1, .hidden = 4, .dtype = Dtype::kF32}, {x.data()}, sum.data()};
        EXPECT_THROW(allreduce_fusion(all, args), DeviceError);
      });
    }
}

/// A rank whose program fails elsewhere, and catches that itself.
TEST(RankMoeLayerFault, ARankThatGivesUpEndsTheOthersWaits) {
  const MoeLayer whole = MoeLayer::from_preset("tiny", alone());
  for (const Mode& m : test::kFourModes)
    on_rank_threads(2, [&](Rank& rank) {
      RankMoeLayer layer = RankMoeLayer::from_preset(rank, "tiny", options_of(m.on(2), 2));
      Call call(whole.impl(), 5);
      output_of(layer, call);
      if (rank.number() == 1) {
        rank.give_up("the request queue is gone");
        rank.give_up("a second reason");
        EXPECT_THROW(output_of(layer, call), DeviceError) << "nor does it go on itself";
        return;
      }
      const auto text = [](const auto& f) -> std::string {
        try {
          f();
        } catch (const DeviceError& e) {
          return e.what();
        }
        return "no error";
      };
      // The first may wait already, the others must not begin to.
      EXPECT_THAT(text([&] { output_of(layer, call); }),
                  HasSubstr("rank 1 gave up (the request queue is gone)"))
          << to_string(m.parallel);
      EXPECT_THAT(text([&] { rank.barrier(); }), HasSubstr("the request queue is gone"));
    });
}

TEST(RankMoeLayerFault, RanksThatCallUnlikeLayersAreToldSo) {
  const MoeLayer whole = MoeLayer::from_preset("tiny", alone());
  for (const test::Way& c : test::kWays) {
    std::string texts[2];
    on_rank_threads(2, [&](Rank& rank) {
      RankBuildOptions o = options_of(c);
      std::vector<RankMoeLayer> layers;
      for (int i = 0; i < 2; ++i) layers.push_back(RankMoeLayer::from_preset(rank, "tiny", o));
      Call call(whole.impl(), 5);
      output_of(layers[0], call);
      try {
        output_of(layers[std::size_t(rank.number())], call);
      } catch (const Error& e) {
        texts[rank.number()] = e.what();
      }
    });
    for (int r : {0, 1})
      EXPECT_THAT(texts[r], AllOf(HasSubstr("calls layer"), HasSubstr("in one order")))
          << to_string(c.mode.parallel) << " " << c.comm;
  }
}

}  // namespace
}  // namespace switchyard
