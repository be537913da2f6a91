// SPDX-License-Identifier: Apache-2.0
#include "switchyard/resolve/probe.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "switchyard/base/nearest.h"
#include "switchyard/core/preset.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/resolve/caches.h"
#include "switchyard/resolve/resolver.h"
#include "switchyard/resolve/warnings.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/selection_cases.h"

namespace switchyard::resolve {
namespace {

using test::usage_error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Collects what the sink gets; every test starts as a fresh process would.
class ProbeTest : public testing::Test {
 protected:
  ProbeTest() {
    forget_warnings();
    before_ = set_warning_sink([this](std::string_view text) { heard_.emplace_back(text); });
  }
  ~ProbeTest() override {
    set_warning_sink(before_);
    forget_warnings();
  }

  static MachineFacts facts(const Variables& variables = {}) {
    return {.variables = [variables] { return variables; },
            .best_isa = [] { return CpuIsa::kAvx512; },
            .memory_bytes = [] { return std::int64_t{123'456'789}; },
            .num_cpus = [] { return 6; },
            .cpu_model = [] { return std::string("Abacus 9"); },
            .l3_bytes = [] { return std::int64_t{48} << 20; },
            .gpus =
                [] {
                  return GpuFacts{true, 2, 90};
                },
            .deps = {{"mpi", [] { return true; }}, {"nccl", [] { return false; }}}};
  }

  static Environment with(const Variables& variables) { return collect(facts(variables)); }

  std::vector<std::string> heard_;

 private:
  WarningSink before_;
};

using Probe = ProbeTest;
using Switches = ProbeTest;

TEST_F(Probe, CollectsEveryFact) {
  Environment env = with({});
  EXPECT_EQ(env.sm, 90);
  EXPECT_EQ(env.num_gpus, 2);
  EXPECT_EQ(env.isa, CpuIsa::kAvx512);
  EXPECT_EQ(env.best_isa, CpuIsa::kAvx512);
  EXPECT_EQ(env.memory_bytes, 123'456'789);
  EXPECT_EQ(env.num_cpus, 6);
  EXPECT_EQ(env.cpu_model, "Abacus 9");
  EXPECT_EQ(env.l3_bytes, std::int64_t{48} << 20);
  EXPECT_THAT(env.deps, ElementsAre("cuda", "mpi"));
  EXPECT_THAT(env.build, HasSubstr("+"));
  EXPECT_THAT(env.warnings, IsEmpty());
  EXPECT_THAT(heard_, IsEmpty());
}

TEST_F(Probe, AProbeThatThrowsCountsAsAbsentAndWarns) {
  MachineFacts broken = facts();
  broken.best_isa = []() -> CpuIsa { throw std::runtime_error("no cpuid here"); };
  broken.memory_bytes = []() -> std::int64_t { throw DeviceError("no meminfo"); };
  broken.num_cpus = []() -> int { throw 7; };
  broken.gpus = []() -> GpuFacts { throw DeviceError("driver fell over"); };
  broken.deps.push_back({"shmem", []() -> bool { throw std::bad_alloc(); }});
  Environment env = collect(broken);
  EXPECT_EQ(env.isa, CpuIsa::kPortable);
  EXPECT_EQ(env.memory_bytes, 0);
  EXPECT_EQ(env.num_cpus, 1);
  EXPECT_EQ(env.num_gpus, 0);
  EXPECT_EQ(env.sm, 0);
  EXPECT_THAT(env.deps, ElementsAre("mpi"));
  ASSERT_EQ(env.warnings.size(), 5u);
  EXPECT_EQ(heard_, env.warnings);
  EXPECT_THAT(env.warnings[0], HasSubstr("no cpuid here"));
  EXPECT_THAT(env.warnings[3], HasSubstr("driver fell over"));
  EXPECT_EQ(collect(facts()).sm, 90) << "a good probe works right after";
}

TEST_F(Probe, DetailsOfAFailureStayOutOfTheFingerprint) {
  auto failing = [](const char* text) {
    MachineFacts f = facts();
    f.gpus = [text]() -> GpuFacts { throw DeviceError(text); };
    return collect(f).fingerprint();
  };
  EXPECT_EQ(failing("one"), failing("two"));
  EXPECT_NE(failing("one"), with({}).fingerprint());
}

TEST_F(Probe, ThisMachineGivesUsableFacts) {
  Environment env = collect(this_machine());
  EXPECT_GT(env.memory_bytes, 0);
  EXPECT_GE(env.num_cpus, 1);
  EXPECT_LE(env.isa, env.best_isa);
  EXPECT_EQ(env.num_gpus > 0, env.sm > 0);
  for (const std::string& warning : env.warnings)
    EXPECT_THAT(warning, testing::Not(HasSubstr("prob")));
}

// A second opinion: the kernel's own list of what it lets a process use.
TEST_F(Probe, AmxRunsOnlyWhenItIsPinned) {
  MachineFacts facts = this_machine();
  facts.best_isa = [] { return CpuIsa::kAmx; };
  facts.variables = [] { return Variables{}; };
  EXPECT_EQ(collect(facts).isa, CpuIsa::kAvx512);
  EXPECT_EQ(collect(facts).best_isa, CpuIsa::kAmx);
  facts.variables = [] { return Variables{{"SWITCHYARD_CPU_ISA", "amx"}}; };
  EXPECT_EQ(collect(facts).isa, CpuIsa::kAmx);
  facts.variables = [] { return Variables{{"SWITCHYARD_CPU_ISA", "zen4"}}; };
  EXPECT_EQ(collect(facts).isa, CpuIsa::kZen4);
}

TEST_F(Probe, EveryOtherTierRunsUnasked) {
  for (const CpuIsa isa : {CpuIsa::kPortable, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kZen4}) {
    MachineFacts facts = this_machine();
    facts.best_isa = [isa] { return isa; };
    facts.variables = [] { return Variables{}; };
    EXPECT_EQ(collect(facts).isa, isa);
  }
}

TEST_F(Probe, TheVectorTierAgreesWithTheKernel) {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> words{std::istream_iterator<std::string>(file), {}};
  if (!words.contains("flags")) GTEST_SKIP() << "/proc/cpuinfo lists no flags on this machine";
  auto has = [&](std::initializer_list<const char*> all) {
    return std::all_of(all.begin(), all.end(), [&](const char* w) { return words.contains(w); });
  };
  bool avx2 = has({"avx2", "fma", "f16c"});
  bool avx512 = avx2 && has({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vbmi",
                             "avx512_vnni", "avx512_bf16"});
  CpuIsa isa = collect(this_machine()).best_isa;
  EXPECT_EQ(isa >= CpuIsa::kAvx2, avx2);
  EXPECT_EQ(isa >= CpuIsa::kAvx512, avx512);
  EXPECT_TRUE(isa < CpuIsa::kAmx || has({"amx_tile", "amx_bf16"}));
  // AMD's first processors with AVX-512 BF16 are those of the tier.
  const bool amd = words.contains("AuthenticAMD"), amx = has({"amx_tile", "amx_bf16"});
  EXPECT_EQ(isa == CpuIsa::kZen4, avx512 && amd && !amx);
}

TEST_F(Probe, IsCachedUntilForced) {
  EXPECT_EQ(environment(), environment());
  Environment again = probe_again();
  EXPECT_EQ(again.fingerprint(), environment().fingerprint());
}

TEST_F(Probe, AnOverrideBeatsTheCacheAndScopesNest) {
  Environment real = environment();
  Environment outer = real, inner = real;
  outer.sm = 71, inner.sm = 72;
  {
    ScopedEnvironment a(outer);
    EXPECT_EQ(environment().sm, 71);
    {
      ScopedEnvironment b(inner);
      EXPECT_EQ(environment().sm, 72);
      EXPECT_NE(probe_again().sm, 72) << "a forced probe tells the machine's own facts";
      EXPECT_EQ(environment().sm, 72) << "and the override still wins";
    }
    EXPECT_EQ(environment().sm, 71);
  }
  EXPECT_EQ(environment().sm, real.sm);
}

TEST_F(Probe, AHypotheticalGpu) {
  Environment env = with_gpu({}, 100);
  EXPECT_EQ(env.sm, 100);
  EXPECT_EQ(env.num_gpus, 1);
  EXPECT_EQ(with_gpu({}, 90, 4).num_gpus, 4);
  EXPECT_TRUE(env.has_dep("cuda"));
  EXPECT_THAT(usage_error_of([] { with_gpu({}, 9); }), HasSubstr("sm = 9"));
}

TEST_F(Switches, NamesAreUniqueAndRowsComplete) {
  std::set<std::string_view> names;
  for (const Switch& row : switch_table()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_FALSE(row.doc.empty()) << row.name;
    EXPECT_EQ(row.canonical != nullptr, row.status == SwitchStatus::kHonoured) << row.name;
    EXPECT_EQ(row.replacement.empty(), row.status == SwitchStatus::kHonoured) << row.name;
    if (row.canonical) {
      EXPECT_EQ(row.canonical(row.name, row.default_value), row.default_value);
    }
  }
  for (const Switch& row : switch_table())
    if (row.status == SwitchStatus::kAlias) {
      EXPECT_TRUE(names.contains(row.replacement)) << row.name;
    }
}

TEST_F(Switches, DefaultsAreFilledInAndSorted) {
  Environment env = with({});
  EXPECT_EQ(env.flags, (Variables{{"SWITCHYARD_COMBINE_PRECISION", "layer"},
                                  {"SWITCHYARD_COMM", "auto"},
                                  {"SWITCHYARD_CPU_ISA", "auto"},
                                  {"SWITCHYARD_POST_QUANT_DISPATCH", "1"},
                                  {"SWITCHYARD_SHARED_EXPERT_FUSION", "0"}}));
  EXPECT_EQ(env.local_flags, (Variables{{"SWITCHYARD_SERVING_TIMEOUT_S", "300"},
                                        {"SWITCHYARD_WARMUP_TIMEOUT_S", "1800"}}));
}

// A value other than the default for each honoured switch; a new row fails here until it has one.
const std::map<std::string_view, std::string> kOtherValues = {
    {"SWITCHYARD_COMM", "two_sided"},        {"SWITCHYARD_CPU_ISA", "avx2"},
    {"SWITCHYARD_WARMUP_TIMEOUT_S", "900"},  {"SWITCHYARD_SERVING_TIMEOUT_S", "60"},
    {"SWITCHYARD_POST_QUANT_DISPATCH", "0"}, {"SWITCHYARD_COMBINE_PRECISION", "fp8"},
    {"SWITCHYARD_SHARED_EXPERT_FUSION", "1"}};

TEST_F(Switches, AnHonouredOneChangesTheFingerprintWhenTheTableSaysSo) {
  const Environment base = with({});
  for (const Switch& row : switch_table()) {
    if (row.status != SwitchStatus::kHonoured) continue;
    const std::string& value = kOtherValues.at(row.name);
    Environment env = with({{std::string(row.name), value}});
    EXPECT_EQ(env.flag(row.name), value);
    EXPECT_EQ(env.fingerprint() != base.fingerprint(), row.in_fingerprint) << row.name;
    EXPECT_THAT(env.warnings, IsEmpty());
  }
  EXPECT_EQ(with({{"SWITCHYARD_CPU_ISA", "avx2"}}).isa, CpuIsa::kAvx2);
}

TEST_F(Switches, EmptyCountsAsUnset) {
  EXPECT_EQ(with({{"SWITCHYARD_CPU_ISA", ""}, {"TRTLLM_FORCE_COMM_METHOD", ""}}), with({}));
}

TEST_F(Switches, EachRetiredOneWarnsExactlyOnceAndChangesNothing) {
  const Environment base = with({});
  for (const Switch& row : switch_table()) {
    if (row.status != SwitchStatus::kRetired) continue;
    heard_.clear();
    for (const char* value : {"1", "0", "anything"}) {
      Environment env = with({{std::string(row.name), value}});
      ASSERT_EQ(env.warnings.size(), 1u) << row.name;
      EXPECT_THAT(env.warnings[0], testing::AllOf(HasSubstr(row.name), HasSubstr(row.replacement)));
      EXPECT_EQ(env.fingerprint(), base.fingerprint()) << row.name;
      env.warnings.clear();
      EXPECT_EQ(env, base) << row.name;
    }
    EXPECT_EQ(heard_.size(), 1u) << row.name << ": three probes, one warning";
  }
}

TEST_F(Switches, ARetiredOneChangesNoVerdict) {
  Environment base = with({}), env = with({{"TRTLLM_GEN_FUSED_MOE_USE_FLASHINFER", "1"}});
  for (const leaves::Leaf* leaf : leaves::all_leaves_from(Device::kCpu))
    for (const std::string& format : leaves::format_names()) {
      Problem p = test::problem_of(format);
      Eligibility a = leaf->can_implement(p, test::deployment_on(leaf->device, base));
      Eligibility b = leaf->can_implement(p, test::deployment_on(leaf->device, env));
      EXPECT_EQ(a.eligible(), b.eligible());
      EXPECT_EQ(a.detail(), b.detail());
    }
  ASSERT_EQ(heard_.size(), 1u);
  EXPECT_THAT(heard_[0], HasSubstr("native leaf"));
}

TEST_F(Switches, AMisspeltOneWarnsOnceWithTheNearestName) {
  Environment env = with({{"SWITCHYARD_CPU_ISO", "avx2"}});
  with({{"SWITCHYARD_CPU_ISO", "avx512"}});
  ASSERT_EQ(heard_.size(), 1u);
  EXPECT_THAT(heard_[0], HasSubstr("did you mean SWITCHYARD_CPU_ISA?"));
  EXPECT_EQ(env.warnings, heard_);
  EXPECT_EQ(env.fingerprint(), with({}).fingerprint());
  EXPECT_EQ(env.isa, CpuIsa::kAvx512);
}

TEST_F(Switches, ForeignNamesAndTheTestsOwnAreLeftAlone) {
  Environment env =
      with({{"PATH", "/bin"}, {"SWITCHYARD_TEST_SOAK", "1"}, {"TRTLLM_ENABLE_PDL", "1"}});
  EXPECT_EQ(env, with({}));
  EXPECT_THAT(heard_, IsEmpty());
}

TEST_F(Switches, AnAliasIsHonouredWithOneWarning) {
  Environment env = with({{"TRTLLM_FORCE_COMM_METHOD", "NVLINK_TWO_SIDED"}});
  EXPECT_EQ(env.flag("SWITCHYARD_COMM"), "two_sided");
  EXPECT_EQ(env.fingerprint(), with({{"SWITCHYARD_COMM", "TWO_SIDED"}}).fingerprint());
  EXPECT_NE(env.fingerprint(), with({}).fingerprint());
  with({{"TRTLLM_FORCE_COMM_METHOD", "ALLGATHER"}});
  ASSERT_EQ(heard_.size(), 1u);
  EXPECT_THAT(heard_[0], HasSubstr("SWITCHYARD_COMM"));
}

TEST_F(Switches, EveryAncestorsStrategyHasOneName) {
  const std::pair<const char*, const char*> rows[] = {{"NVLINK_ONE_SIDED", "one_sided"},
                                                      {"NVLINK_TWO_SIDED", "two_sided"},
                                                      {"ALLGATHER", "all_gather"},
                                                      {"NCCL_EP", "nccl"},
                                                      {"DEEPEP", "compact"},
                                                      {"DEEPEPLOWLATENCY", "expert_major"}};
  for (auto [theirs, ours] : rows)
    EXPECT_EQ(with({{"SWITCHYARD_COMM", theirs}}).flag("SWITCHYARD_COMM"), ours);
}

TEST_F(Switches, AnAliasThatContradictsItsReplacementIsAnError) {
  const std::string text = usage_error_of([] {
    with({{"SWITCHYARD_COMM", "one_sided"}, {"TRTLLM_FORCE_COMM_METHOD", "ALLGATHER"}});
  });
  for (const char* part :
       {"SWITCHYARD_COMM", "one_sided", "TRTLLM_FORCE_COMM_METHOD", "all_gather"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THROW(with({{"TRTLLM_MOE_A2A_TIMEOUT_SEC", "7"}, {"TRTLLM_MOE_COMM_TIMEOUT_SEC", "8"}}),
               UsageError)
      << "two aliases of one switch";
  EXPECT_NO_THROW(
      with({{"SWITCHYARD_COMM", "all_gather"}, {"TRTLLM_FORCE_COMM_METHOD", "ALLGATHER"}}));
}

TEST_F(Switches, IllegalValuesAreErrors) {
  const std::pair<const char*, const char*> rows[] = {
      {"SWITCHYARD_CPU_ISA", "foo"},
      {"SWITCHYARD_COMM", "carrier_pigeon"},
      {"SWITCHYARD_POST_QUANT_DISPATCH", "yes"},
      {"SWITCHYARD_COMBINE_PRECISION", "int8"},
      {"SWITCHYARD_SHARED_EXPERT_FUSION", "2"},
      {"SWITCHYARD_WARMUP_TIMEOUT_S", "0"},
      {"SWITCHYARD_WARMUP_TIMEOUT_S", "86401"},
      {"SWITCHYARD_SERVING_TIMEOUT_S", "1.5"},
      {"SWITCHYARD_SERVING_TIMEOUT_S", "-3"},
      {"SWITCHYARD_SERVING_TIMEOUT_S", "99999999999999999999"},
      {"TRTLLM_MOE_COMM_TIMEOUT_SEC", "soon"}};
  for (auto [name, value] : rows) {
    std::string text = usage_error_of([&, n = name, v = value] { with({{n, v}}); });
    EXPECT_THAT(text, testing::AllOf(HasSubstr(name), HasSubstr(value)));
    EXPECT_NO_THROW(with({}));
  }
}

TEST_F(Switches, AVectorTierThatIsNotThereIsAnError) {
  std::string text = usage_error_of([] { with({{"SWITCHYARD_CPU_ISA", "amx"}}); });
  EXPECT_THAT(text, testing::AllOf(HasSubstr("amx"), HasSubstr("avx512")));
  EXPECT_EQ(with({{"SWITCHYARD_CPU_ISA", "Portable"}}).isa, CpuIsa::kPortable);
}

TEST_F(Switches, WarmUpIsNeverShorterThanServing) {
  EXPECT_THROW(
      with({{"SWITCHYARD_WARMUP_TIMEOUT_S", "10"}, {"SWITCHYARD_SERVING_TIMEOUT_S", "11"}}),
      UsageError);
  Environment env = with({{"SWITCHYARD_SERVING_TIMEOUT_S", "5000"}});
  EXPECT_EQ(env.flag("SWITCHYARD_WARMUP_TIMEOUT_S"), "5000") << "a default follows";
  EXPECT_THAT(
      env.warnings,
      testing::ElementsAre(HasSubstr("5000 is longer than the warm-up's 1800, which is raised")));
  env = with({{"SWITCHYARD_WARMUP_TIMEOUT_S", "20"}});
  EXPECT_EQ(env.flag("SWITCHYARD_SERVING_TIMEOUT_S"), "20");
  EXPECT_THAT(
      env.warnings,
      testing::ElementsAre(HasSubstr("20 is shorter than the serving timeout's 300, which is")));
  EXPECT_THAT(with({{"SWITCHYARD_SERVING_TIMEOUT_S", "1800"}}).warnings, testing::IsEmpty());
}

TEST_F(Switches, WarningsReachTheReport) {
  Environment env = with({{"TRTLLM_CAN_USE_DEEP_EP", "1"}});
  Report r = resolve(make_preset("tiny"), test::deployment_on(Device::kCpu, env));
  EXPECT_EQ(r.warnings, env.warnings);
  EXPECT_THAT(to_text(r), HasSubstr("TRTLLM_CAN_USE_DEEP_EP"));
}

// Rule 1: machine facts and environment variables have one reader.
bool reads_machine(std::string_view text) {
  for (std::string_view call :
       {"getenv(", "char** environ", "= environ;", "environ[", "<cpuid.h>", "__get_cpuid",
        "__builtin_cpu_", "xgetbv", "\"/proc/", "\"/sys/", "sched_getaffinity",
        "hardware_concurrency", "_SC_NPROCESSORS", "get_nprocs", "arch_prctl", "cudaGetDeviceCount",
        "cudaGetDeviceProperties", "cudaDeviceGetAttribute"})
    if (text.find(call) != std::string_view::npos) return true;
  return false;
}

std::set<std::string> readers_under(const std::filesystem::path& root) {
  std::set<std::string> out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path());
    std::stringstream text;
    text << file.rdbuf();
    if (reads_machine(text.str()))
      out.insert(std::filesystem::relative(entry.path(), root).string());
  }
  return out;
}

// Two processors share a cache, the third has one of its own; the sizes are the kernel's words.
TEST(LastLevel, EachCacheIsCountedOnce) {
  const test::TempDir dir;
  const auto write = [&](const std::string& index, const char* level, const char* type,
                         const char* size, const char* cpus) {
    std::filesystem::create_directories(dir.path() + "/" + index);
    dir.write(index + "/level", level);
    dir.write(index + "/type", type);
    dir.write(index + "/size", size);
    dir.write(index + "/shared_cpu_list", cpus);
  };
  for (const std::string& cpu : {std::string("cpu0"), std::string("cpu1"), std::string("cpu9")}) {
    const std::string own = cpu.substr(3) + "\n", last = cpu == "cpu9" ? "8-11,40\n" : "0-1\n";
    write(cpu + "/cache/index0", "1\n", "Data\n", "48K\n", own.c_str());
    write(cpu + "/cache/index1", "1\n", "Instruction\n", "32K\n", own.c_str());
    write(cpu + "/cache/index2", "2\n", "Unified\n", "1024K\n", own.c_str());
    write(cpu + "/cache/index3", "3\n", "Unified\n", "32768K\n", last.c_str());
  }
  const std::int64_t mib = std::int64_t(1) << 20;
  EXPECT_EQ(last_level_bytes(dir.path(), {0}), 32 * mib);
  EXPECT_EQ(last_level_bytes(dir.path(), {0, 1}), 32 * mib);
  EXPECT_EQ(last_level_bytes(dir.path(), {0, 1, 9, 10, 40}), 64 * mib) << "10 and 40 are 9's";
  EXPECT_EQ(last_level_bytes(dir.path(), {0, 5}), 0) << "nothing is known of 5";
  EXPECT_EQ(last_level_bytes(dir.path() + "/absent", {0}), 0);
  EXPECT_EQ(last_level_bytes(dir.path(), {}), 0);
  for (const char* unknown : {"", "\n", "all\n", "1\n"}) {
    dir.write("cpu0/cache/index3/shared_cpu_list", unknown);
    EXPECT_EQ(last_level_bytes(dir.path(), {0}), 0) << "nobody knows who shares it: " << unknown;
    EXPECT_EQ(last_level_bytes(dir.path(), {9, 0}), 0) << unknown;
  }
  std::filesystem::remove(dir.path() + "/cpu0/cache/index3/shared_cpu_list");
  EXPECT_EQ(last_level_bytes(dir.path(), {0, 1}), 0);
  dir.write("cpu0/cache/index3/shared_cpu_list", "0-1\n");
  EXPECT_EQ(last_level_bytes(dir.path(), {0, 1}), 32 * mib);
  dir.write("cpu0/cache/index3/size", "many");
  EXPECT_EQ(last_level_bytes(dir.path(), {0}), 0);
  dir.write("cpu0/cache/index3/level", "");  // the second one is then the last
  EXPECT_EQ(last_level_bytes(dir.path(), {0}), mib);
}

// A launch of the fused all-reduce asks the GPU that it runs on how many blocks fit: that cuts
// rows, no verdict depends on it.
TEST_F(Probe, IsTheOnlyReaderOfTheMachine) {
  EXPECT_THAT(readers_under(SWITCHYARD_SOURCE_ROOT "/src/switchyard"),
              ElementsAre("ops/allreduce_norm/device_launch.h", "resolve/probe.cc",
                          "resolve/probe_cuda.cu"));
}

TEST_F(Probe, TheSearchFindsWhatItForbids) {
  for (const char* line :
       {"std::getenv(\"X\")", "extern char** environ;", "open(\"/proc/cpuinfo\")",
        "std::thread::hardware_concurrency()", "__builtin_cpu_supports(\"avx2\")"})
    EXPECT_TRUE(reads_machine(line)) << line;
  EXPECT_FALSE(reads_machine("const Environment& environment = environment();"));
}

}  // namespace
}  // namespace switchyard::resolve
