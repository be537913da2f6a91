// SPDX-License-Identifier: Apache-2.0
#include "switchyard/resolve/probe.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <mutex>
#include <string_view>

#include "switchyard/base/check.h"
#include "switchyard/base/version.h"
#include "switchyard/comm/mpi_group.h"
#include "switchyard/resolve/caches.h"
#include "switchyard/resolve/warnings.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace switchyard::resolve {
namespace {

#if defined(__x86_64__)

struct Leaf7 {
  unsigned ebx = 0, ecx = 0, edx = 0, eax1 = 0;  // eax1: of subleaf 1
};

Leaf7 read_leaf7() {
  Leaf7 out;
  unsigned eax = 0, unused = 0;
  if (!__get_cpuid_count(7, 0, &eax, &out.ebx, &out.ecx, &out.edx)) return out;
  if (eax >= 1) __get_cpuid_count(7, 1, &out.eax1, &unused, &unused, &unused);
  return out;
}

constexpr bool has_all(std::uint64_t word, std::uint64_t bits) { return (word & bits) == bits; }

// Registers that the kernel saves on a switch of tasks; an instruction set without them traps.
std::uint64_t saved_state() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !has_all(ecx, bit_OSXSAVE)) return 0;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t(high) << 32 | low;
}

bool has_avx2(const Leaf7& leaf, std::uint64_t saved) {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return has_all(saved, 0x6) && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
         has_all(ecx, bit_FMA | bit_AVX | bit_F16C) && has_all(leaf.ebx, bit_AVX2);
}

bool has_avx512(const Leaf7& leaf, std::uint64_t saved) {
  return has_all(saved, 0xe6) &&
         has_all(leaf.ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) &&
         has_all(leaf.ecx, bit_AVX512VBMI | bit_AVX512VNNI) && has_all(leaf.eax1, bit_AVX512BF16);
}

// A layer's bits may not depend on its batch, so one tier serves every height. AMX leads by a
// factor of three and more at 512 tokens and loses half at one token of a 4-bit format: it runs
// when it is pinned.
constexpr CpuIsa best_by_default(CpuIsa best) {
  return best == CpuIsa::kAmx ? CpuIsa::kAvx512 : best;
}

// Linux hands out the 8 KB of tile state only to processes that ask for it.
bool amx_granted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_amx(const Leaf7& leaf, std::uint64_t saved) {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;  // clang 14's cpuid.h does not name them
  return has_all(saved, 0x60000) && has_all(leaf.edx, kTile | kBf16) && amx_granted();
}

/// AMD's Zen 4 (family 0x19 with AVX-512) and later.
bool has_fast_bf16_pairs() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx)) return false;
  if (ebx != signature_AMD_ebx || ecx != signature_AMD_ecx || edx != signature_AMD_edx)
    return false;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
  constexpr unsigned kZen3And4 = 0x19;
  return (eax >> 8 & 0xf) + (eax >> 20 & 0xff) >= kZen3And4;
}

CpuIsa machine_isa() {
  Leaf7 leaf = read_leaf7();
  std::uint64_t saved = saved_state();
  if (!has_avx2(leaf, saved)) return CpuIsa::kPortable;
  if (!has_avx512(leaf, saved)) return CpuIsa::kAvx2;
  if (has_amx(leaf, saved)) return CpuIsa::kAmx;
  return has_fast_bf16_pairs() ? CpuIsa::kZen4 : CpuIsa::kAvx512;
}

#else

CpuIsa machine_isa() { return CpuIsa::kPortable; }

#endif

Variables machine_variables() {
  Variables out;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    std::string_view entry = *at;
    std::size_t equals = entry.find('=');
    if (equals != std::string_view::npos)
      out.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return out;
}

std::int64_t machine_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  std::int64_t kilobytes = 0;
  while (file >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes * 1024;
    std::getline(file, unit);
  }
  throw DeviceError("/proc/meminfo names no MemAvailable");
}

int machine_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return int(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

std::string machine_cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with("model name") && colon != std::string::npos)
      return line.substr(std::min(line.find_first_not_of(" \t", colon + 1), line.size()));
  }
  return "";
}

/// The C library derives a size from the CPU's own answers, which a virtual machine may not fit;
/// the kernel's folder says which processors share a cache.
std::int64_t machine_l3() {
  const std::int64_t bytes = last_level_bytes("/sys/devices/system/cpu", usable_cpus());
  return bytes > 0 ? bytes : std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE));
}

class Collector {
 public:
  Environment run(const MachineFacts& facts) {
    SwitchReading switches = read_switches(ask("variables", facts.variables, Variables{}));
    env_.flags = std::move(switches.flags);
    env_.local_flags = std::move(switches.local_flags);
    for (const SwitchWarning& warning : switches.warnings) add_warning(warning.key, warning.text);
    cpu(facts);
    gpu_and_deps(facts);
    env_.build = cat(version(), "+", commit());
    return std::move(env_);
  }

 private:
  void cpu(const MachineFacts& facts) {
    env_.best_isa = ask("best_isa", facts.best_isa, CpuIsa::kPortable);
    env_.memory_bytes = ask("memory_bytes", facts.memory_bytes, std::int64_t{0});
    env_.num_cpus = ask("num_cpus", facts.num_cpus, 1);
    env_.cpu_model = ask("cpu_model", facts.cpu_model, std::string());
    env_.l3_bytes = ask("l3_bytes", facts.l3_bytes, std::int64_t{0});
    std::string_view pin = env_.flag("SWITCHYARD_CPU_ISA");
    env_.isa = pin == "auto" ? best_by_default(env_.best_isa) : to_cpu_isa(pin);
    require(env_.isa <= env_.best_isa, "SWITCHYARD_CPU_ISA = ", pin, ", but the best tier here is ",
            to_string(env_.best_isa), "; pin that one or a lower one, or unset it");
  }

  void gpu_and_deps(const MachineFacts& facts) {
    GpuFacts gpus = ask("gpus", facts.gpus, GpuFacts{});
    env_.num_gpus = gpus.num_gpus;
    env_.sm = gpus.num_gpus > 0 ? gpus.sm : 0;
    if (gpus.built) env_.deps.emplace_back("cuda");
    for (const auto& [name, present] : facts.deps)
      if (ask(name, present, false)) env_.deps.push_back(name);
    std::sort(env_.deps.begin(), env_.deps.end());
  }

  template <class T>
  T ask(const std::string& what, const std::function<T()>& source, T absent) {
    try {
      if (source) return source();
    } catch (const std::exception& e) {
      add_warning("probe." + what,
                  cat("probing ", what, " failed and counts as absent: ", e.what()));
    } catch (...) {
      add_warning("probe." + what, cat("probing ", what, " failed and counts as absent"));
    }
    return absent;
  }

  void add_warning(const std::string& key, const std::string& text) {
    env_.warnings.push_back(text);
    warn_once(key, text);
  }

  Environment env_;
};

struct Cache {
  std::mutex mutex;
  std::optional<Environment> probed, overridden;
};

Cache& cache() {
  static Cache state;
  return state;
}

}  // namespace

Launch launched() {
  const Variables variables = machine_variables();
  auto number = [&](std::string_view name) {
    int value = -1;
    for (const auto& [key, text] : variables)
      if (key == name) std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  };
  for (const auto& [size_name, rank_name] :
       {std::pair{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
        std::pair{"PMI_SIZE", "PMI_RANK"}}) {
    const int processes = number(size_name), rank = number(rank_name);
    if (processes >= 1 && rank >= 0 && rank < processes) return {rank, processes};
  }
  return {};
}

std::vector<int> usable_cpus() {
  std::vector<int> out;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return out;
  for (int c = 0; c < CPU_SETSIZE; ++c)
    if (CPU_ISSET(c, &set)) out.push_back(c);
  return out;
}

MachineFacts this_machine() {
  return {.variables = machine_variables,
          .best_isa = machine_isa,
          .memory_bytes = machine_memory,
          .num_cpus = machine_cpus,
          .cpu_model = machine_cpu_model,
          .l3_bytes = machine_l3,
          .gpus = probe_gpus,
          .deps = {{"mpi", comm::has_mpi}}};
}

Environment collect(const MachineFacts& facts) { return Collector().run(facts); }

Environment environment() {
  {
    std::lock_guard lock(cache().mutex);
    if (cache().overridden) return *cache().overridden;
    if (cache().probed) return *cache().probed;
  }
  return probe_again();
}

Environment probe_again() {
  Environment probed = collect(this_machine());
  std::lock_guard lock(cache().mutex);
  cache().probed = probed;
  return probed;
}

ScopedEnvironment::ScopedEnvironment(Environment env) {
  std::lock_guard lock(cache().mutex);
  before_ = std::exchange(cache().overridden, std::move(env));
}

ScopedEnvironment::~ScopedEnvironment() {
  std::lock_guard lock(cache().mutex);
  cache().overridden = std::move(before_);
}

Environment with_gpu(Environment env, int sm, int count) {
  require(sm >= 50 && sm <= 999, "sm = ", sm, " is not a GPU architecture; use e.g. 90 or 100");
  env.sm = sm;
  env.num_gpus = std::max(count, env.num_gpus);
  if (!env.has_dep("cuda")) env.deps.emplace_back("cuda");
  std::sort(env.deps.begin(), env.deps.end());
  return env;
}

}  // namespace switchyard::resolve
