// SPDX-License-Identifier: Apache-2.0
// Every mistake gets exactly one line on stderr, nothing on stdout, and the right exit status.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/command_runner.h"
#include "tests/support/safetensors_writer.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using test::Finished;
using test::run_command;
using testing::HasSubstr;

std::string data(const std::string& name) { return std::string(SWITCHYARD_TEST_DATA) + "/" + name; }

void expect_refused(const std::vector<std::string>& args, int status,
                    const std::vector<std::string>& says) {
  std::string call = "switchyard " + testing::PrintToString(args);
  Finished done = run_command(args);
  EXPECT_EQ(done.status, status) << call << "\n" << done.err;
  EXPECT_EQ(done.out, "") << call;
  EXPECT_TRUE(done.err.starts_with("switchyard: ")) << call << "\n" << done.err;
  EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << call << "\n" << done.err;
  EXPECT_TRUE(done.err.ends_with("\n")) << call;
  for (const std::string& part : says) EXPECT_THAT(done.err, HasSubstr(part)) << call;
}

struct Case {
  std::vector<std::string> args;
  std::vector<std::string> says;
  int status = 2;
};

class Refused : public testing::TestWithParam<Case> {};

TEST_P(Refused, WithOneLine) {
  const Case& c = GetParam();
  expect_refused(c.args, c.status, c.says);
  std::vector<std::string> json = c.args;
  json.push_back("--json");
  if (c.args.size() > 1 && c.says.front() != "needs a value") expect_refused(json, c.status, {});
}

INSTANTIATE_TEST_SUITE_P(
    TopLevel, Refused,
    testing::Values(
        Case{{}, {"no command"}}, Case{{"verfy"}, {"verfy", "did you mean verify"}},
        Case{{"frobnicate"}, {"known: run, verify, explain, inspect, doctor"}},
        Case{{"--jsn"}, {"flag '--jsn' is unknown"}},
        Case{{"--version", "now"}, {"'now' is one too many"}},
        Case{{"bench"}, {"given no kind", "layer, routing, exchange, allreduce, compare"}},
        Case{{"bench", "lyer"}, {"kind 'lyer'", "did you mean layer"}},
        Case{{"bench", "exchange", "--strategy", "one_sidd"},
             {"bench exchange: ", "one_sidd", "one_sided"}},
        Case{{"bench", "exchange", "--ranks", "1"}, {"--ranks = '1'", "2 to 256"}},
        Case{{"bench", "exchange", "--payload", "fp9"}, {"payload 'fp9'"}},
        Case{{"bench", "exchange", "--strategy", "nccl"},
             {"no exchange strategy can serve: nccl"},
             1},
        Case{{"bench", "allreduce", "--pattern", "12"}, {"--pattern", "0 to 11"}},
        Case{{"bench", "allreduce", "--device", "cuda", "--ranks", "9"},
             {"9 ranks on GPUs", "1..8"},
             1},
        Case{{"bench", "allreduce", "--shared"}, {"patterns 6 and 7"}},
        Case{{"bench", "allreduce", "--top-k", "2"}, {"--top-k is of pattern 7", "pattern 1"}},
        Case{{"bench", "allreduce", "--pattern", "7", "--experts", "2"},
             {"--experts is of pattern 6", "pattern 7"}},
        Case{{"bench", "allreduce", "--scale-layout", "linear"},
             {"--scale-layout is of nvfp4 scales"}},
        Case{{"bench", "allreduce", "--quant", "nvfp4"},
             {"quant nvfp4 is of patterns 6 and 7", "kARResidualRMSNorm"}},
        Case{{"bench", "allreduce", "--tokens", "1048576", "--hidden", "16777216"},
             {"tokens = 1048576 x hidden = 16777216", "ask for fewer tokens"}},
        Case{{"tune", "--again"}, {"--again is given without --out"}},
        Case{{"tune", "--tuning", "t.json"}, {"tune compares with the plans"}},
        Case{{"tune", "--ranks", "2"}, {"path_not_enabled", "tune under dep"}, 1},
        Case{{"tune", "--out", "/no/such/folder/t.json"}, {"/no/such/folder/t.json"}},
        Case{{"run", "--tuning", "/no/such.json"}, {"/no/such.json"}},
        Case{{"eplb"}, {"eplb", "plan, simulate"}},
        Case{{"quantize", "x"}, {"quantize", "not built", "--format"}, 1}));

INSTANTIATE_TEST_SUITE_P(
    Flags, Refused,
    testing::Values(Case{{"run", "--tokns", "3"}, {"run: flag '--tokns'", "did you mean --tokens"}},
                    Case{{"run", "--tokns=3"}, {"did you mean --tokens"}},
                    Case{{"verify", "--jsn", "DIR"},
                         {"verify: flag '--jsn'", "did you mean --json"}},
                    Case{{"run", "extra"}, {"'extra' is one too many"}},
                    Case{{"verify", "a", "b"}, {"'b' is one too many"}},
                    Case{{"run", "--tokens"}, {"needs a value", "--tokens"}},
                    Case{{"run", "--tokens", "1", "--tokens", "2"}, {"--tokens", "more than once"}},
                    Case{{"run", "--preset", ""}, {"--preset is empty"}},
                    Case{{"run", "--tokens", "x"}, {"--tokens = 'x'", "0 to"}},
                    Case{{"run", "--tokens", "-1"}, {"'-1'", "0 to"}},
                    Case{{"run", "--tokens", "1e3"}, {"'1e3'"}},
                    Case{{"run", "--tokens", "0x10"}, {"'0x10'"}},
                    Case{{"run", "--tokens", "7 "}, {"'7 '"}},
                    Case{{"run", "--tokens", "99999999999999999999"}, {"99999999999999999999"}},
                    Case{{"run", "--threads", "0"}, {"--threads = '0'", "1 to 1024"}},
                    Case{{"run", "--threads", "1025"}, {"--threads = '1025'", "1 to 1024"}},
                    Case{{"run", "--seed", "-3"}, {"--seed = '-3'"}},
                    Case{{"run", "--top-k", "33"}, {"--top-k = '33'", "1 to 32"}},
                    Case{{"run", "--factor", "nan"}, {"--factor = 'nan'"}},
                    Case{{"run", "--factor", "0"}, {"--factor = '0'"}},
                    Case{{"explain", "--sm", "9"}, {"--sm = '9'"}},
                    Case{{"explain", "--experts", "4096"}, {"--experts = '4096'", "2048"}},
                    Case{{"explain", "--ranks", "3", "--ep", "2"}, {"--ranks = 3 contradicts"}},
                    Case{{"doctor", "--json=true"}, {"--json takes no value", "write --json"}},
                    Case{{"doctor", "--json=x"}, {"--json takes no value"}},
                    Case{{"run", "--without-shared=1"}, {"--without-shared takes no value"}},
                    Case{{"verify"}, {"DIR is missing"}}, Case{{"inspect"}, {"PATH is missing"}}));

INSTANTIATE_TEST_SUITE_P(
    Bench, Refused,
    testing::Values(
        Case{{"bench", "layer", "--tokns", "3"}, {"bench layer: flag '--tokns'", "--tokens"}},
        Case{{"bench", "layer", "--tokens", "1,,8"}, {"--tokens = '1,,8'", "empty item"}},
        Case{{"bench", "layer", "--tokens", "1,x"}, {"--tokens has 'x'", "1 to"}},
        Case{{"bench", "layer", "--tokens", "0"}, {"--tokens has '0'", "1 to"}},
        Case{{"bench", "layer", "--tokens", "8,8"}, {"'8' twice"}},
        Case{{"bench", "layer", "--tokens", "8,08"}, {"--tokens has 8 twice"}},
        Case{{"bench", "layer", "--formats", "nvfp5"}, {"format 'nvfp5'", "did you mean nvfp4"}},
        Case{{"bench", "layer", "--formats", "all,nvfp4"}, {"--formats", "twice"}},
        Case{{"bench", "layer", "--formats", "nvfp4,all"}, {"--formats has all beside others"}},
        Case{{"bench", "layer", "--formats", "bf16", "--format", "fp8"}, {"both given"}},
        Case{{"bench", "layer", "--routing", "uniform,hot"}, {"routing 'hot'", "zipf"}},
        Case{{"bench", "layer", "--seconds", "0"}, {"--seconds = '0'"}},
        Case{{"bench", "layer", "--seconds", "4000"}, {"seconds = 4000"}},
        Case{{"bench", "layer", "--search", "pigeons"}, {"--search has 'pigeons'"}, 2},
        Case{{"bench", "layer", "--max-configs", "3"}, {"--max-configs", "--search"}, 2},
        Case{{"bench", "layer", "--ranks", "2", "--state", "warm"}, {"--state", "one rank"}, 2},
        Case{{"bench", "layer", "--bars"}, {"no row has a bar", "qwen3-30b-a3b"}},
        Case{{"bench", "layer", "--preset", "qwen3-30b-a3b", "--tokens", "3", "--bars"},
             {"no row has a bar"}},
        Case{{"bench", "layer", "--checkpoint", data("mixtral"), "--bars"}, {"no row has a bar"}},
        Case{{"bench", "layer", "--layer", "2"}, {"--layer 2 needs --checkpoint"}},
        Case{{"bench", "layer", "--preset", "tiny", "--checkpoint", "x"}, {"both given"}},
        Case{{"bench", "layer", "--checkpoint", "/none"}, {"/none"}},
        Case{{"bench", "layer", "--preset", "tinny"}, {"preset 'tinny'"}},
        Case{{"bench", "layer", "--ranks", "2", "--comm", "nccl"},
             {"NCCL is not in this build; pin another"},
             1},
        Case{{"bench", "layer", "--slots", "9"}, {"slots = 9", "balance nothing"}, 1},
        Case{{"bench", "layer", "--comm", "nccl"}, {"nccl cannot serve"}, 1},
        Case{{"bench", "layer", "--device", "cuda"}, {"cuda"}, 3},
        Case{{"bench", "layer", "--formats", "all", "--device", "cuda"}, {"cuda"}, 3},
        Case{{"bench", "layer", "--formats", "all", "--slots", "9"},
             {"slots = 9", "balance nothing"},
             1},
        Case{{"bench", "layer", "--formats", "all", "--leaf", "no.leaf"}, {"no.leaf"}},
        Case{{"bench", "layer", "--state", "hot"}, {"--state has 'hot'", "fresh, cold, warm"}},
        Case{{"bench", "layer", "--state", "warm", "--bars"}, {"--bars holds fresh calls"}},
        Case{{"bench", "layer", "7"}, {"'7' is one too many"}},
        Case{{"bench", "routing", "--methods", "TopQ"}, {"routing method 'TopQ'", "TopK"}},
        Case{{"bench", "routing", "--methods", "TopK,topk"}, {"TopK twice"}},
        Case{{"bench", "routing", "--methods", "Unspecified"}, {"Unspecified", "caller"}},
        Case{{"bench", "routing", "--tokens", "-1"}, {"'-1'"}},
        Case{{"bench", "routing", "--preset", "tinny"}, {"preset 'tinny'"}},
        Case{{"bench", "routing", "--threads", "0"}, {"--threads = '0'"}},
        Case{{"bench", "routing", "--seed", "x"}, {"--seed = 'x'"}},
        Case{{"bench", "routing", "--seconds", "-1"}, {"--seconds = '-1'"}},
        Case{{"bench", "compare"}, {"A.json is missing"}},
        Case{{"bench", "compare", "a"}, {"B.json is missing"}},
        Case{{"bench", "compare", "a", "b", "c"}, {"'c' is one too many"}},
        Case{{"bench", "compare", "/none/a", "b"}, {"/none/a cannot be read"}},
        Case{{"bench", "compare", "/", "b"}, {"/ cannot be read"}},
        Case{{"bench", "compare", data("mixtral/config.json"), data("mixtral/config.json")},
             {"config.json is no result"}},
        Case{{"bench", "compare", "/dev/null", "/dev/null"}, {"/dev/null is no result"}},
        Case{{"bench", "compare", "a", "b", "--noise", "-1"}, {"--noise = '-1'", "from 0 on"}},
        Case{{"bench", "compare", "a", "b", "--noise", "x"}, {"--noise = 'x'"}}));

INSTANTIATE_TEST_SUITE_P(
    Words, Refused,
    testing::Values(Case{{"run", "--preset", "tinny"}, {"preset 'tinny'", "did you mean tiny"}},
                    Case{{"explain", "--preset", "deepseek-v33"}, {"did you mean deepseek-v3"}},
                    Case{{"run", "--format", "nvfp5"}, {"format 'nvfp5'", "did you mean nvfp4"}},
                    Case{{"explain", "--format", "int3"}, {"format 'int3'", "known: bf16"}},
                    Case{{"verify", data("mixtral"), "--format", "fp9"}, {"format 'fp9'"}},
                    Case{{"run", "--format", "MIXED_PRECISION"}, {"MIXED_PRECISION"}},
                    Case{{"run", "--device", "tpu"}, {"device 'tpu'", "cpu or cuda"}},
                    Case{{"doctor", "--device", "gpu"}, {"device 'gpu'"}},
                    Case{{"run", "--activations", "int8"}, {"activations 'int8'", "f32"}},
                    Case{{"run", "--routing", "random"}, {"routing 'random'", "zipf"}},
                    Case{{"run", "--parallel", "ddp"}, {"parallel mode 'ddp'", "dep"}},
                    Case{{"run", "--leaf", "nvfp5"}, {"'nvfp5'"}},
                    Case{{"run", "--leaf", "cpu.cuda"}, {"sets the technique twice"}},
                    Case{{"verify", data("mixtral"), "--leaf", "cuda.cpu"}, {"twice"}},
                    Case{{"run", "--prefer", "TRTLM"}, {"TRTLM"}},
                    Case{{"explain", "--activation", "swiglo"}, {"did you mean swiglu"}},
                    Case{{"explain", "--routing-method", "DeepSeek"}, {"'DeepSeek'", "DeepSeekV3"}},
                    Case{{"explain", "--comm", "onesided"}, {"'onesided'", "one_sided"}},
                    Case{{"explain", "--dtype", "fp64"}, {"dtype 'fp64'"}},
                    Case{{"run", "--preset", "tiny", "--checkpoint", "x"}, {"both given"}},
                    Case{{"explain", "--preset", "tiny", "--checkpoint", "x"}, {"both stated"}},
                    Case{{"explain", "--preset", "tiny", "--hidden", "64"},
                         {"hidden is stated beside"}},
                    Case{{"run", "--layer", "3"}, {"--layer 3 needs --checkpoint"}},
                    Case{{"run", "--top-k", "9"}, {"top_k"}},
                    Case{{"explain", "--experts", "4", "--top-k", "5"}, {"top_k"}}));

INSTANTIATE_TEST_SUITE_P(
    NotBuilt, Refused,
    testing::Values(
        Case{{"run", "--ranks", "3", "--ep", "2"}, {"--ranks = 3 contradicts"}},
        Case{{"run", "--slots", "9"}, {"slots = 9 for 8 experts", "balance nothing"}, 1},
        Case{{"run", "--placement", "p.json"}, {"a placement spreads slots over ranks"}},
        Case{{"bench", "layer", "--placement", "p.json"}, {"a placement spreads slots over ranks"}},
        Case{{"run", "--ranks", "2", "--parallel", "ttp", "--placement", "p.json"},
             {"ep = 1, where every rank holds columns of all experts"}},
        Case{{"run", "--chunk-tokens", "4"}, {"chunk_tokens = 4 cuts the exchanges"}},
        Case{{"run", "--ranks", "2", "--parallel", "tep", "--chunk-tokens", "4"},
             {"--chunk-tokens 4", "--parallel tep makes none", "leave it out"}},
        Case{{"run", "--ranks", "2", "--comm", "fused", "--chunk-tokens", "4"},
             {"--chunk-tokens 4", "--comm fused takes whole calls", "leave one of the two out"}},
        Case{{"run", "--ep", "2", "--parallel", "ttp"},
             {"--parallel ttp cuts every expert", "--ep 2 divides", "--tp 2", "--parallel tep"}},
        Case{{"explain", "--preset", "tiny", "--ep", "2", "--tp", "2", "--parallel", "dtp"},
             {"--parallel dtp cuts", "--tp 4", "--parallel dep"}},
        Case{{"run", "--ranks", "2", "--parallel", "tep", "--comm", "one_sided"},
             {"exchanges no tokens; pin no strategy, or ask for parallel dep"},
             1},
        Case{{"run", "--ranks", "2", "--leaf", "switchyard.cpu.mega_moe.none"},
             {"no leaf to pin", "the communication strategy is fused"}},
        Case{{"run", "--ranks", "300"}, {"topology_unsupported", "ranks = 300 exceed"}, 1},
        Case{{"bench", "layer", "--ranks", "2", "--seconds", "1"}, {"--seconds", "one rank"}},
        Case{{"run", "--with-parallel-mlp"}, {"no MLP beside its MoE block"}},
        Case{{"verify", data("granitemoe"), "--with-parallel-mlp"}, {"no MLP beside"}},
        Case{{"run", "--finalize", "fused"}, {"finalize fused", "--parallel ttp"}},
        Case{{"run", "--finalize", "fused", "--ep", "2"},
             {"--finalize fused", "under --parallel dep", "--parallel tep or ttp"}},
        Case{
            {"run", "--ranks", "2", "--parallel", "ttp", "--finalize", "fused", "--combine", "fp8"},
            {"--finalize fused", "--combine fp8", "leave one of the two out"}},
        Case{{"bench", "layer", "--finalize", "fused"}, {"finalize fused", "--parallel ttp"}},
        Case{{"run", "--finalize", "fast"}, {"'fast'", "plain, fused or reduce"}},
        Case{{"run", "--combine", "fp9"}, {"combine precision 'fp9'", "nvfp4"}},
        Case{{"run", "--comm", "one_sided"},
             {"topology_unsupported: strategy one_sided cannot serve: ranks = 1"},
             1},
        Case{{"run", "--leaf", "nvfp4"}, {"quant_unsupported"}, 1}));

INSTANTIATE_TEST_SUITE_P(
    Paths, Refused,
    testing::Values(
        Case{{"verify", "/no/such/folder"}, {"/no/such/folder", "does not exist"}},
        Case{{"run", "--checkpoint", "/no/such/folder"}, {"does not exist"}},
        Case{{"explain", "--checkpoint", "/no/such/folder"}, {"does not exist"}},
        Case{{"inspect", "/no/such/folder"}, {"does not exist"}},
        Case{{"verify", data("mixtral/config.json")}, {"config.json", "file"}},
        Case{{"inspect", data("mixtral/config.json")}, {"config.json"}},
        Case{{"verify", data("mixtral"), "--io", data("mixtral")}, {"directory"}},
        Case{{"verify", data("mixtral"), "--io", "/no/io"}, {"/no/io"}},
        Case{{"verify", data("mixtral"), "--io", data("mixtral/model.safetensors")},
             {"hidden_states"}},
        Case{{"verify", data("mixtral"), "--calibrate", data("mixtral")}, {"directory"}},
        Case{{"run", "--calibrate", "/no/tokens"}, {"/no/tokens"}},
        Case{{"verify", data("mixtral"), "--layer", "99"}, {"layer 99"}},
        Case{{"explain", "--checkpoint", data("mixtral"), "--layer", "99"}, {"layer 99"}},
        Case{{"run", "--checkpoint", data("mixtral"), "--slots", "3"}, {"slots = 3"}, 1},
        Case{{"verify", data("mixtral"), "--io", data("mixtral/moe_io.safetensors"), "--tokens",
              "4"},
             {"tokens = 4", "both given"}},
        Case{{"verify", data("mixtral"), "--row", "4"}, {"row 4", "without a file"}},
        Case{{"verify", data("mixtral"), "--dump-stages", "/no/such/stages", "--row", "2"},
             {"/no/such/stages", "cannot be written"}},
        Case{{"verify", data("mixtral"), "--dump-stages", "/tmp/never", "--row", "24"},
             {"row 24", "0..23"}}));

// The library's line may begin with the call's name, and so does the command's.
TEST(Lines, NameTheCallOnce) {
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"bench", "layer", "--seconds", "4000"},
        {"bench", "routing", "--seconds", "4000"},
        {"run", "--tokens", "-1"}}) {
    const std::string name = args[0] == "bench" ? args[0] + " " + args[1] : args[0];
    const std::string err = run_command(args).err;
    EXPECT_TRUE(err.starts_with("switchyard: " + name + ": ")) << err;
    EXPECT_EQ(err.find(name + ":"), err.rfind(name + ":")) << err;
  }
}

bool has_gpu() { return fs::exists("/dev/nvidiactl"); }

TEST(NoDevice, IsStatusThree) {
  if (has_gpu()) GTEST_SKIP() << "this machine has a GPU";
  expect_refused({"run", "--device", "cuda"}, 3, {"GPU"});
  expect_refused({"run", "--leaf", "cuda.none"}, 3, {"GPU"});
  expect_refused({"verify", data("mixtral"), "--device", "cuda"}, 3, {"GPU"});
  Finished doctor = run_command({"doctor", "--device", "cuda"});
  EXPECT_EQ(doctor.status, 3);
  EXPECT_EQ(doctor.err, "");
}

/// A copy of a fixture that a test may damage.
class Broken : public testing::Test {
 protected:
  void SetUp() override {
    dir_ =
        fs::temp_directory_path() / ("switchyard_broken_" + std::to_string(getpid()) + "_" +
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(dir_);
    fs::copy(data("mixtral"), dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string path(const std::string& name = "") const {
    return name.empty() ? dir_.string() : (dir_ / name).string();
  }

  /// Every command that reads a checkpoint refuses it, and a good one still works afterwards.
  void expect_all_refuse(const std::vector<std::string>& says) const {
    expect_refused({"verify", path()}, 2, says);
    expect_refused({"run", "--checkpoint", path(), "--json"}, 2, says);
    expect_refused({"inspect", path()}, 2, says);
    expect_refused({"explain", "--checkpoint", path()}, 2, says);
    EXPECT_EQ(run_command({"verify", data("mixtral")}).status, 0);
  }

 private:
  fs::path dir_;
};

TEST_F(Broken, TruncatedWeights) {
  fs::resize_file(path("model.safetensors"), fs::file_size(path("model.safetensors")) - 100);
  expect_all_refuse({"model.safetensors"});
}

// A call that memory does not hold is refused with both sizes, in every command alike.
TEST(Memory, IsOneRuleOfAllCommands) {
  for (const std::vector<std::string>& call : std::vector<std::vector<std::string>>{
           {"bench", "exchange", "--hidden", "65536", "--tokens", "1000000"},
           {"bench", "allreduce", "--hidden", "65536", "--tokens", "1000000"}})
    expect_refused(call, 2, {" x hidden = 65536 on ", " MiB are available; ask for fewer tokens"});
}

TEST(Memory, ThatTheSystemRefusesIsBadInputToo) {
  test::Start start;
  start.launcher = {"sh", "-c", "ulimit -v 300000; exec \"$@\"", "sh"};
  start.args = {"--version"};
  if (run_command(start).status != 0) GTEST_SKIP() << "a sanitizer maps more than that";
  start.args = {"verify", data("mixtral"), "--tokens", "1048576", "--threads", "1"};
  const Finished done = run_command(start);
  EXPECT_EQ(done.status, 2);
  EXPECT_THAT(done.err, testing::ContainsRegex("memory is exhausted: the system refused more, and "
                                               "[0-9]+ MiB were available"));
}

TEST_F(Broken, EmptyWeights) {
  fs::resize_file(path("model.safetensors"), 0);
  expect_all_refuse({"model.safetensors", "0 bytes"});
}

TEST_F(Broken, WeightsThatAreNoNumbers) {
  test::CheckpointEditor m = test::CheckpointEditor::fixture("mixtral");
  m.tensors.at("model.layers.0.block_sparse_moe.experts.5.w3.weight")
      .bytes.replace(8, 2, "\xc0\x7f");
  std::ofstream(path("model.safetensors"), std::ios::binary) << test::safetensors_bytes(m.tensors);
  const std::vector<std::string> says = {"experts.5.w3.weight", "row 0, column 4 is nan"};
  expect_refused({"verify", path()}, 2, says);
  expect_refused({"run", "--checkpoint", path()}, 2, says);
  const Finished done = run_command({"inspect", path()});
  EXPECT_EQ(done.status, 1);
  EXPECT_THAT(done.out,
              HasSubstr("layer 0: odd: tensor 'model.layers.0.block_sparse_moe.experts.5"));
  EXPECT_EQ(run_command({"inspect", data("mixtral")}).status, 0);
}

TEST_F(Broken, MissingWeights) {
  fs::remove(path("model.safetensors"));
  expect_all_refuse({"model.safetensors"});
}

TEST_F(Broken, MissingConfig) {
  fs::remove(path("config.json"));
  expect_all_refuse({"config.json"});
}

TEST_F(Broken, ConfigThatIsNoJson) {
  std::ofstream(path("config.json")) << "{\"model_type\":\n\n";
  expect_all_refuse({"config.json"});
}

TEST_F(Broken, UnknownFamily) {
  std::ofstream(path("config.json")) << "{\"model_type\": \"mixtrall\"}";
  expect_refused({"verify", path()}, 2, {"mixtrall", "mixtral"});
}

// A whole layer that was not fetched is no pass of the rest.
TEST_F(Broken, LayersThatAreAbsent) {
  test::CheckpointEditor two = test::CheckpointEditor::fixture("afmoe");
  std::erase_if(two.tensors, [](const auto& t) { return t.first.starts_with("model.layers.1."); });
  test::CheckpointEditor four = test::CheckpointEditor::fixture("qwen3_moe");
  four.config["num_hidden_layers"] = 4;
  struct Partial {
    const test::CheckpointEditor& checkpoint;
    const char *layer, *absent, *says;
  };
  for (const Partial& p :
       {Partial{two, "0", "1", "MoE layer 1 is declared and the checkpoint holds no tensor of it"},
        Partial{four, "0", "2",
                "MoE layers 1 .. 3 are declared and the checkpoint holds no tensor of them"}}) {
    SCOPED_TRACE(p.says);
    std::ofstream(path("config.json")) << p.checkpoint.config;
    std::ofstream(path("model.safetensors"), std::ios::binary)
        << test::safetensors_bytes(p.checkpoint.tensors);
    expect_refused({"verify", path()}, 2, {p.says, "fetch the files that are missing"});
    for (const std::vector<std::string>& call :
         std::vector<std::vector<std::string>>{{"verify", path(), "--layer", p.layer},
                                               {"run", "--checkpoint", path()},
                                               {"explain", "--checkpoint", path()}}) {
      Finished done = run_command(call);
      EXPECT_EQ(done.status, 0) << done.err;
      EXPECT_THAT(done.out, HasSubstr(p.says));
      std::vector<std::string> json = call;
      json.push_back("--json");
      done = run_command(json);
      EXPECT_THAT(done.out, HasSubstr("\"notices\": [\n    \"" + std::string(p.says)));
    }
    for (const std::vector<std::string>& call : std::vector<std::vector<std::string>>{
             {"verify", path(), "--layer", p.absent},
             {"run", "--checkpoint", path(), "--layer", p.absent}})
      expect_refused(call, 2,
                     {std::string("layer ") + p.absent +
                      " is declared but the checkpoint holds none of its tensors; those it holds: "
                      "0\n"});
  }
  expect_refused({"verify", data("deepseek_v3"), "--layer", "1"}, 2,
                 {"layer 1 is declared (multi-token prediction) but"});
  EXPECT_EQ(run_command({"verify", data("deepseek_v3")}).status, 0);
}

TEST_F(Broken, IoOfAnotherWidth) {
  expect_refused({"verify", path(), "--io", data("gpt_oss_mxfp4/moe_io.safetensors")}, 2,
                 {"hidden_states"});
}

}  // namespace
}  // namespace switchyard
