// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/rank_judge.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/latent.h"
#include "switchyard/layer/oracle.h"

namespace switchyard::layer {
namespace {

constexpr const char* kPhase = "check of the ranks";

/// What this rank's forward gave for its own tokens, and what the oracle chooses for them.
struct OwnTokens {
  std::int64_t tokens = 0;
  std::vector<float> exact;  // what the hidden dtype holds
  std::vector<float> x;      // what the routed experts read: the same, or rows in latent space
  std::vector<std::byte> hidden, out;
  OracleChoice choice;
  std::vector<std::int32_t> placed;  // slots of the chosen experts
  OracleResult result;               // of the choice
};

/// Memory in which one rank at a time asks, and all ranks answer.
///
/// Shapes:  hidden [tokens, W], ids, weights [tokens, k] of the asking rank; answer(r) [tokens, W];
///          W is what the experts read and write, H or the latent width.
class Board {
 public:
  /// For at most `tokens` tokens of one rank.
  Board(comm::Group& group, std::int64_t tokens, const Problem& p)
      : group_(group), answer_(tokens * p.expert_hidden()) {
    constexpr std::int64_t kHead = 64;
    const std::int64_t list = tokens * p.top_k() * 4;
    ids_ = kHead + answer_ * 4;
    weights_ = ids_ + list;
    answers_ = (weights_ + list + kHead - 1) / kHead * kHead;
    memory_ = group.share(std::size_t(answers_ + group.size() * answer_ * 8), kPhase);
  }

  std::int64_t& tokens() const { return *at<std::int64_t>(0); }
  float* hidden() const { return at<float>(64); }
  std::int32_t* ids() const { return at<std::int32_t>(ids_); }
  float* weights() const { return at<float>(weights_); }
  double* answer(int rank) const { return at<double>(answers_) + rank * answer_; }

  void ask(const OwnTokens& own) const {
    tokens() = own.tokens;
    std::copy(own.x.begin(), own.x.end(), hidden());
    std::copy(own.placed.begin(), own.placed.end(), ids());
    std::copy(own.choice.weights.begin(), own.choice.weights.end(), weights());
  }
  /// Returns when every rank has come here.
  void meet() const { group_.barrier(kPhase); }

 private:
  template <class T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(memory_.bytes.data() + offset);
  }
  comm::Group& group_;
  std::int64_t answer_;  // values of one
  std::int64_t ids_ = 0, weights_ = 0, answers_ = 0;
  comm::SharedBytes memory_;
};

OwnTokens run_own(RankLayer& ranks, const JudgeArgs& a, Judgement& j) {
  const Layer& layer = ranks.part();
  const Problem& p = layer.problem();
  const Dtype dtype = layer.options().dtype;
  const std::size_t size = std::size_t(a.tokens * p.hidden);
  require(a.tokens >= 0 && a.tokens <= kMostJudged, "check of the ranks: ", a.tokens,
          " tokens are outside 0..", kMostJudged);
  OwnTokens own;
  own.tokens = a.tokens;
  own.exact.resize(size);
  own.hidden.resize(size * size_of(dtype));
  own.out.assign(size * size_of(dtype), std::byte(0xff));  // poison: NaN in every dtype
  for (std::size_t i = 0; i < size; ++i) {
    store_element(dtype, own.hidden.data(), std::int64_t(i), a.hidden[i]);
    own.exact[i] = load_element(dtype, own.hidden.data(), std::int64_t(i));
  }
  j.ids.resize(std::size_t(a.tokens * p.top_k()));
  std::vector<float> weights(j.ids.size());
  HostBuffer workspace(ranks.on_gpus() ? 0 : ranks.workspace_bytes());
  ForwardArgs f;
  f.tokens = a.tokens;
  f.hidden = own.hidden.data();
  f.hidden_stride = f.out_stride = p.hidden;
  f.logits = a.logits;
  f.token_ids = a.token_ids;
  f.out = own.out.data();
  f.ids_out = j.ids.data();
  f.weights_out = weights.data();
  f.workspace = workspace.bytes();
  ranks.on_gpus() ? forward_from_host(ranks, f) : ranks.forward(f);
  OracleArgs ask{.tokens = a.tokens,
                 .hidden = own.exact.data(),
                 .token_ids = a.token_ids,
                 .logits = a.logits,
                 .leaf_ids = j.ids.data(),
                 .leaf_weights = weights.data()};
  if (a.tokens > 0) own.choice = oracle_choice(layer, ask, own.result);
  own.x = own.exact;
  if (layer.latent() != nullptr && a.tokens > 0) {
    own.x.resize(std::size_t(a.tokens * p.latent));
    project_down(layer, {f, dtype, /*rounds=*/true}, own.x.data(), workspace.bytes());
    ask.leaf_latent = own.x.data();
    own.x = oracle_latent(layer, ask);
  }
  own.placed.resize(own.choice.ids.size());
  ranks.place(a.tokens, own.hidden.data(), p.hidden * std::int64_t(size_of(dtype)), own.choice.ids,
              own.placed);
  j.ids_differing = own.result.ids_differing;
  j.ids_near_tie = own.result.ids_near_tie;
  j.out.resize(size);
  for (std::size_t i = 0; i < size; ++i)
    j.out[i] = load_element(dtype, own.out.data(), std::int64_t(i));
  return own;
}

/// Rows that a bank's leaf runs.
struct BankCall {
  const Layer& layer;
  const leaves::Leaf& leaf;
  const ExpertBank& bank;
  std::int64_t tokens = 0;
  const float* x = nullptr;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
};

/// leaf_codes() of a leaf of cuda, which reads the hidden dtype: the rows are exact in it.
void device_leaf_codes(const BankCall& c, std::vector<double>& inter, std::vector<float>& out) {
  const ops::FfnShape& s = c.bank.shape;
  const Dtype dtype = c.layer.options().dtype;
  std::vector<std::byte> x(std::size_t(c.tokens * s.hidden) * size_of(dtype));
  for (std::int64_t i = 0; i < c.tokens * s.hidden; ++i) store_element(dtype, x.data(), i, c.x[i]);
  StageCapture capture{inter.data()};
  ops::FfnArgs f;
  f.tokens = c.tokens;
  f.x_dtype = dtype;
  f.x = x.data();
  f.x_stride = s.hidden;
  f.ids = c.ids;
  f.weights = c.weights;
  f.out = out.data();
  f.capture = &capture;
  experts_from_host(c.leaf, c.bank, f);
}

/// The leaf's own second quantiser's values.
std::vector<double> leaf_codes(const BankCall& c) {
  const ops::FfnShape& s = c.bank.shape;
  std::vector<double> inter(std::size_t(c.tokens * s.top_k * s.inter));
  std::vector<float> out(std::size_t(c.tokens * s.hidden));
  if (on_cuda(c.layer)) {
    device_leaf_codes(c, inter, out);
    return inter;
  }
  ThreadPool& pool = *c.layer.options().pool;
  HostBuffer workspace(c.leaf.ffn->workspace_bytes(s, c.bank.layout, c.tokens,
                                                   {pool.size(), c.layer.options().isa}));
  StageCapture capture{inter.data()};
  ops::FfnArgs f;
  f.shape = &s;
  f.layout = &c.bank.layout;
  f.packed = c.bank.packed.data();
  f.fc1_input_scale = c.bank.scales.fc1;
  f.activation = c.bank.activation.data();
  f.tokens = c.tokens;
  f.x_dtype = f.out_dtype = Dtype::kF32;
  f.x = c.x;
  f.x_stride = f.out_stride = s.hidden;
  f.ids = c.ids;
  f.weights = c.weights;
  f.out = out.data();
  f.capture = &capture;
  f.pool = &pool;
  f.isa = c.layer.options().isa;
  f.workspace = workspace.bytes();
  c.leaf.ffn->forward(f);
  return inter;
}

/// The oracle's rows of the shared expert that this rank holds, on the leaf's codes where they
/// differ.
std::vector<double> shared_rows(const Layer& layer, std::int64_t tokens, const float* hidden,
                                Judgement& j) {
  const ExpertBank* bank = layer.shared();
  if (bank == nullptr || tokens == 0) return {};
  OracleArgs ask;
  ask.tokens = tokens;
  ask.hidden = hidden;
  OracleResult result;
  std::vector<double> rows = oracle_shared(layer, ask, result);
  if (!requantises(bank->shape.quant)) return rows;
  const std::vector<std::int32_t> ids(std::size_t(tokens), 0);
  const std::vector<float> ones(std::size_t(tokens), 1.0F);
  const std::vector<double> leaf = leaf_codes(
      {layer, *layer.options().shared_leaf, *bank, tokens, hidden, ids.data(), ones.data()});
  std::vector<std::uint8_t> flipped(std::size_t(tokens), 0);
  j.codes += tokens * bank->shape.inter;
  for (std::size_t t = 0; t < flipped.size(); ++t)
    j.codes_differing += find_flips(
        {leaf, result.shared_inter, bank->shape.inter, same_code(layer, *bank)}, t, flipped);
  ask.leaf_shared_inter = leaf.data();
  ask.use_leaf_shared_inter = flipped.data();
  return oracle_shared(layer, ask, result);
}

/// This rank's experts on the tokens of the board, the leaf's codes and the oracle's rows.
class RankOracle {
 public:
  RankOracle(const RankLayer& ranks, const Board& board, int source)
      : ranks_(ranks),
        layer_(ranks.part()),
        bank_(layer_.routed()),
        board_(board),
        tokens_(board.tokens()),
        width_(bank_.shape.hidden),
        choices_(std::size_t(tokens_ * bank_.shape.top_k)),
        ids_(choices_),
        weights_(choices_),
        wire_(std::size_t(comm::wire_bytes(ranks.wire(), width_))) {
    // Behind a token's own choices stand the fused shared experts, with weight 1.
    const std::int64_t k = layer_.problem().top_k(), all = bank_.shape.top_k;
    std::vector<std::int32_t> ids(choices_);
    std::vector<float> weights(choices_, 1.0F);
    for (std::int64_t t = 0; t < tokens_; ++t)
      for (std::int64_t j = 0; j < all; ++j) {
        const std::size_t at = std::size_t(t * all + j);
        ids[at] =
            j < k ? board.ids()[t * k + j] : std::int32_t(layer_.problem().num_experts() + j - k);
        if (j < k) weights[at] = board.weights()[t * k + j];
      }
    ranks.localise(ids, weights, source, ids_.data(), weights_.data());
  }

  /// Writes this rank's answer: what arrives of its shares, in double.
  void answer(Judgement& j) {
    const std::int64_t h = width_;
    double* out = board_.answer(ranks_.group().rank());
    std::fill_n(out, tokens_ * h, 0.0);
    if (tokens_ == 0) return;
    // Where ranks reduce, each adds its shard of the shared expert to its share.
    const bool adds_shared = ranks_.strategy() == nullptr && layer_.latent() == nullptr;
    shared_ =
        adds_shared ? shared_rows(layer_, tokens_, board_.hidden(), j) : std::vector<double>();
    run(nullptr, nullptr);
    std::vector<std::uint8_t> flipped(choices_);
    const std::vector<double> leaf = count_flips(flipped, j);
    if (std::ranges::count(flipped, 1) > 0) run(leaf.data(), flipped.data());
    for (std::int64_t t = 0; t < tokens_; ++t) send(t, out + t * h);
  }

 private:
  bool by_choice() const { return ranks_.weights_by() == comm::WeightsBy::kCombine; }
  /// Whether expert rows and the shared shard are rounded before they are summed (FusedEnd).
  bool rounds_rows() const { return ranks_.ending() != Ending::kPlain; }
  bool by_rows() const { return by_choice() || rounds_rows(); }

  void run(const double* inter, const std::uint8_t* use) {
    const checkpoint::ExpertSource source = packed_experts(layer_);
    const std::size_t h = std::size_t(width_);
    out_.assign(std::size_t(tokens_) * h, 0);
    rows_.assign(by_rows() ? choices_ * h : 0, 0);
    inter_.assign(choices_ * std::size_t(bank_.shape.inter), 0);
    const bool reduces = ranks_.strategy() == nullptr;
    ops::grouped_ffn_ref({.shape = &bank_.shape,
                          .expert = &source,
                          .fc1_input_scale = bank_.scales.fc1,
                          .fc2_input_scale = bank_.scales.fc2.data(),
                          .activation = bank_.activation.data(),
                          .tokens = tokens_,
                          .x = board_.hidden(),
                          .ids = ids_.data(),
                          .weights = weights_.data(),
                          .factor = reduces ? double(layer_.problem().routed_scaling_factor) : 1.0,
                          .addend = shared_.empty() ? nullptr : shared_.data(),
                          .out = out_.data(),
                          .rows = by_rows() ? rows_.data() : nullptr,
                          .inter_out = inter_.data(),
                          .inter_in = inter,
                          .use_inter = use,
                          .pool = layer_.options().pool.get()});
  }

  std::vector<double> count_flips(std::vector<std::uint8_t>& flipped, Judgement& j) {
    if (!requantises(bank_.shape.quant)) return {};
    std::vector<double> leaf = leaf_codes({layer_, *layer_.options().leaf, bank_, tokens_,
                                           board_.hidden(), ids_.data(), weights_.data()});
    for (std::size_t r = 0; r < choices_; ++r) {
      if (ids_[r] < 0 || ids_[r] >= bank_.shape.experts) continue;
      j.codes += bank_.shape.inter;
      j.codes_differing +=
          find_flips({leaf, inter_, bank_.shape.inter, same_code(layer_, bank_)}, r, flipped);
    }
    return leaf;
  }

  /// Adds to `out` what arrives of token `t`: its share, or each of its weighted rows.
  void send(std::int64_t t, double* out) {
    const std::int64_t h = width_, k = bank_.shape.top_k;
    if (rounds_rows()) return through_wire(sum_of_rounded(t).data(), 1, out);
    if (!by_choice()) return through_wire(out_.data() + t * h, 1, out);
    for (std::int64_t i = t * k; i < (t + 1) * k; ++i)
      if (ids_[std::size_t(i)] >= 0)
        through_wire(rows_.data() + i * h, double(weights_[std::size_t(i)]), out);
  }

  /// The share of token `t` as a fused end makes it: of rows and shared shard in the layer's dtype.
  std::vector<double> sum_of_rounded(std::int64_t t) const {
    const std::int64_t h = width_, k = bank_.shape.top_k;
    std::vector<double> sum(std::size_t(h), 0.0);
    for (std::int64_t r = t * k; r < (t + 1) * k; ++r) {
      const std::int32_t id = ids_[std::size_t(r)];
      if (id < 0) continue;
      const bool weighted = !bank_.shape.weight_on_input || id >= bank_.shape.experts;
      const double weight = weighted ? double(weights_[std::size_t(r)]) : 1.0;
      for (std::int64_t c = 0; c < h; ++c)
        sum[std::size_t(c)] += weight * rounded(rows_[std::size_t(r * h + c)]);
    }
    const auto factor = double(layer_.problem().routed_scaling_factor);
    for (std::int64_t c = 0; c < h; ++c) {
      sum[std::size_t(c)] *= factor;
      if (!shared_.empty()) sum[std::size_t(c)] += rounded(shared_[std::size_t(t * h + c)]);
    }
    return sum;
  }

  double rounded(double value) const {
    std::byte stored[sizeof(float)];
    store_element(layer_.options().dtype, stored, 0, float(value));
    return double(load_element(layer_.options().dtype, stored, 0));
  }

  void through_wire(const double* row, double weight, double* out) {
    const std::int64_t h = width_;
    const std::vector<float> exact(row, row + h);
    std::vector<float> arrived(exact.size());
    comm::encode_row(ranks_.wire(), exact.data(), h, wire_.data());
    comm::add_row(ranks_.wire(), wire_.data(), 1, h, arrived.data());
    for (std::int64_t i = 0; i < h; ++i) out[i] += weight * double(arrived[std::size_t(i)]);
  }

  const RankLayer& ranks_;
  const Layer& layer_;
  const ExpertBank& bank_;
  const Board& board_;
  std::int64_t tokens_, width_;
  std::size_t choices_;
  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;
  std::vector<double> out_, rows_, inter_, shared_;
  HostBuffer wire_;  // one row
};

/// The source adds its choices of zero experts behind the sum.
void add_zero_experts(const Problem& p, const OwnTokens& own, std::vector<double>& out) {
  const std::size_t h = std::size_t(p.expert_hidden()), k = std::size_t(p.top_k());
  for (std::size_t i = 0; i < own.choice.ids.size(); ++i)
    for (std::size_t c = 0; own.choice.ids[i] >= p.num_experts() && c < h; ++c)
      out[i / k * h + c] += double(own.choice.weights[i]) * double(own.x[i / k * h + c]);
}

/// What the ranks' answers amount to for this rank's tokens: in rank order, then what its scheduler
/// does behind the sum.
std::vector<double> finish(const RankLayer& ranks, const Board& board, const OwnTokens& own,
                           Judgement& j) {
  const Layer& layer = ranks.part();
  const std::size_t size = std::size_t(own.tokens * layer.problem().expert_hidden());
  const bool latent = layer.latent() != nullptr;
  std::vector<double> out(size);
  for (int r = 0; r < ranks.group().size(); ++r)
    for (std::size_t i = 0; i < size; ++i) out[i] += board.answer(r)[i];
  if (ranks.strategy() != nullptr) {
    add_zero_experts(layer.problem(), own, out);
    for (double& v : out) v *= double(layer.problem().routed_scaling_factor);
  } else if (!latent) {
    return out;  // the shares held the shared expert
  }
  const std::vector<double> shared = shared_rows(layer, own.tokens, own.exact.data(), j);
  if (latent) return oracle_leave_latent(layer, own.tokens, out, shared);
  for (std::size_t i = 0; i < shared.size(); ++i) out[i] += shared[i];
  return out;
}

void compare(const RankLayer& ranks, const OwnTokens& own, std::vector<double> want, Judgement& j) {
  const std::int64_t h = ranks.part().problem().hidden;
  std::vector<double> got = j.out;
  for (std::int64_t t : own.result.swapped) {  // their experts differ lawfully
    std::fill_n(got.begin() + t * h, h, 0.0);
    std::fill_n(want.begin() + t * h, h, 0.0);
  }
  const double slack = rounding_slack(ranks.part().options().dtype);
  j.rel_l2_oracle = rel_l2(got.data(), want.data(), got.size(), slack);
  for (std::int64_t t = 0; t < own.tokens; ++t) {
    const double row = rel_l2(got.data() + t * h, want.data() + t * h, std::size_t(h), slack);
    if (!(row <= j.worst_row_rel_l2)) j.worst_row = t;
    j.worst_row_rel_l2 = std::isnan(row) ? row : std::max(j.worst_row_rel_l2, row);
  }
}

/// Most tokens that some rank has judged.
std::int64_t most_tokens(comm::Group& group, std::int64_t mine) {
  std::int64_t most = 1;
  for (const std::string& text :
       group.all_gather({reinterpret_cast<const char*>(&mine), sizeof mine}, kPhase)) {
    std::int64_t other;
    std::memcpy(&other, text.data(), sizeof other);
    most = std::max(most, other);
  }
  return most;
}

/// The judgement that all ranks share.
void unite(comm::Group& group, Judgement& j) {
  struct Counts {
    double rel_l2, worst_rel_l2;
    std::int64_t worst_row, ids_differing, ids_near_tie, codes, codes_differing;
  };
  const Counts mine{j.rel_l2_oracle,  j.worst_row_rel_l2, j.worst_row,
                    j.ids_differing,  j.ids_near_tie,     j.codes,
                    j.codes_differing};
  j.rel_l2_oracle = j.worst_row_rel_l2 = 0;
  j.ids_differing = j.ids_near_tie = j.codes = j.codes_differing = 0;
  for (const std::string& text :
       group.all_gather({reinterpret_cast<const char*>(&mine), sizeof mine}, kPhase)) {
    Counts c;
    std::memcpy(&c, text.data(), sizeof c);
    // A NaN is the worst of all.
    if (!(c.rel_l2 <= j.rel_l2_oracle) && !std::isnan(j.rel_l2_oracle)) j.rel_l2_oracle = c.rel_l2;
    if (!(c.worst_rel_l2 <= j.worst_row_rel_l2) && !std::isnan(j.worst_row_rel_l2)) {
      j.worst_row_rel_l2 = c.worst_rel_l2;
      j.worst_row = c.worst_row;
    }
    j.ids_differing += c.ids_differing;
    j.ids_near_tie += c.ids_near_tie;
    j.codes += c.codes;
    j.codes_differing += c.codes_differing;
  }
}

/// How far apart a wire's neighbouring values are, for those whose edges a share may meet. Sums in
/// fp32 meet a bf16 edge too rarely to tell, sums of E4M3 products do not.
double step_of(comm::Wire wire, bool sums_e4m3) {
  switch (wire) {
    case comm::Wire::kNvfp4:
      return 0x1p-1;
    case comm::Wire::kFp8:
      return 0x1p-3;
    case comm::Wire::kBf16:
      return sums_e4m3 ? 0x1p-8 : 0;
    default:
      return 0;
  }
}

/// What the last rounding may cost where two shares of the output's own dtype are added: half of
/// such sums lie just between two values. That is sqrt(3 / 2) times what other numbers lose.
double sum_of_shares(const RankLayer& layer) {
  constexpr double kSumOfTwo = 1.2247449;
  const bool same = layer.wire() == comm::Wire::kBf16 || layer.wire() == comm::Wire::kFp16;
  return layer.group().size() > 1 && same
             ? kSumOfTwo * budgets_of(layer.part().routed().shape.quant).oracle
             : 0;
}

}  // namespace

Budgets budgets_of(const RankLayer& layer) {
  Budgets out = budgets_of(layer.part());
  // A value within the budget of a code's edge takes either code: a move by one step of relative
  // size s, of a share of the values that is about budget / s, adds sqrt(s * budget).
  const double step = step_of(layer.wire(), out.flips == kE4m3Flips);
  out.oracle = std::max({out.oracle, std::sqrt(step * out.oracle), sum_of_shares(layer)});
  return out;
}

Judgement judge_ranks(RankLayer& ranks, const JudgeArgs& args) {
  const Problem& p = ranks.part().problem();
  Judgement j;
  OwnTokens own = run_own(ranks, args, j);
  const auto reading = ranks.part().reading();
  const Board board(ranks.group(), most_tokens(ranks.group(), args.tokens), p);
  std::vector<double> want;
  const int asking = ranks.own_tokens() ? ranks.group().size() : 1;
  for (int source = 0; source < asking; ++source) {
    const bool mine = source == ranks.group().rank() || asking == 1;
    if (source == ranks.group().rank()) board.ask(own);
    board.meet();
    RankOracle(ranks, board, source).answer(j);
    board.meet();
    if (mine) want = finish(ranks, board, own, j);
    board.meet();  // before the next one asks
  }
  compare(ranks, own, std::move(want), j);
  unite(ranks.group(), j);
  return j;
}

}  // namespace switchyard::layer
