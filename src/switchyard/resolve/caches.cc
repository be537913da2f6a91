// SPDX-License-Identifier: Apache-2.0
#include "switchyard/resolve/caches.h"

#include <fstream>
#include <set>
#include <sstream>

#include "switchyard/base/text.h"

namespace switchyard::resolve {
namespace {

/// The file's first line; empty when there is none.
std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string out;
  std::getline(file, out);
  return out;
}

/// "32768K" in bytes; 0 for anything else.
std::int64_t bytes_of(const std::string& size) {
  std::istringstream in(size);
  std::int64_t count = 0;
  char unit = ' ';
  if (!(in >> count) || count < 0 || count >= std::int64_t(1) << 32) return 0;
  in >> unit;
  return unit == 'K' ? count << 10 : unit == 'M' ? count << 20 : unit == 'G' ? count << 30 : 0;
}

/// The processors of "0-3,8"; a broken list ends where it is broken.
std::set<int> cpus_of(const std::string& list) {
  std::istringstream in(list);
  std::set<int> out;
  for (int first = 0; in >> first;) {
    int last = first;
    if (in.peek() == '-') in.ignore() >> last;
    for (int cpu = first; cpu <= last && cpu < first + (1 << 16); ++cpu) out.insert(cpu);
    if (in.peek() == ',') in.ignore();
  }
  return out;
}

struct Cache {
  std::int64_t level = 0, bytes = 0;
  std::set<int> cpus;
};

/// The one of the highest level that is no instruction cache; level 0 when there is none.
Cache last_level(const std::string& folder) {
  Cache out;
  for (int i = 0;; ++i) {
    const std::string index = cat(folder, "/index", i, "/");
    std::istringstream level_text(line_of(index + "level"));
    std::int64_t level = 0;
    if (!(level_text >> level)) return out;
    if (level <= out.level || line_of(index + "type") == "Instruction") continue;
    out = {level, bytes_of(line_of(index + "size")), cpus_of(line_of(index + "shared_cpu_list"))};
  }
}

}  // namespace

std::int64_t last_level_bytes(const std::string& root, const std::vector<int>& cpus) {
  std::int64_t out = 0;
  std::set<int> counted;
  for (const int cpu : cpus) {
    if (counted.contains(cpu)) continue;
    const Cache cache = last_level(cat(root, "/cpu", cpu, "/cache"));
    // One that does not name the processor would be counted once for each that shares it.
    if (cache.bytes == 0 || !cache.cpus.contains(cpu)) return 0;
    out += cache.bytes;
    counted.insert(cache.cpus.begin(), cache.cpus.end());
  }
  return out;
}

}  // namespace switchyard::resolve
