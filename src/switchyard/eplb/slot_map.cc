// SPDX-License-Identifier: Apache-2.0
#include "switchyard/eplb/slot_map.h"

#include <algorithm>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/base/random.h"

namespace switchyard::eplb {

std::uint64_t token_key(std::span<const std::byte> row) {
  std::uint64_t key = 0;
  const std::size_t bytes = std::min(row.size(), kTokenKeyBytes);
  for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, row.data() + at, std::min(sizeof word, bytes - at));
    key = Random(key, word).bits(0);
  }
  return key;
}

SlotMap::SlotMap(std::span<const std::int32_t> slots, std::int64_t num_experts)
    : experts_(slots.begin(), slots.end()), first_(std::size_t(num_experts) + 1, 0) {
  for (std::size_t s = 0; s < slots.size(); ++s) {
    require(slots[s] >= 0 && slots[s] < num_experts, "slot map: slot ", s, " holds expert ",
            slots[s], ", must be 0 to ", num_experts - 1);
    ++first_[std::size_t(slots[s]) + 1];
  }
  for (std::size_t e = 0; e < std::size_t(num_experts); ++e) {
    require(first_[e + 1] > 0, "slot map: expert ", e, " has no slot; every expert needs one");
    first_[e + 1] += first_[e];
  }
  slots_.resize(slots.size());
  std::vector<std::int32_t> next = first_;
  for (std::size_t s = 0; s < slots.size(); ++s)
    slots_[std::size_t(next[std::size_t(slots[s])]++)] = std::int32_t(s);
}

std::int32_t SlotMap::slot_of(std::int32_t expert, std::uint64_t key) const {
  const std::span<const std::int32_t> all = replicas(expert);
  if (all.size() == 1) return all.front();
  const std::uint64_t draw = Random(key, std::uint64_t(expert)).bits(1) >> 32;
  return all[std::size_t((draw * all.size()) >> 32)];
}

void SlotMap::route(std::span<std::int32_t> ids, std::uint64_t key) const {
  for (std::int32_t& id : ids)
    if (id >= 0) id = slot_of(id, key);
}

}  // namespace switchyard::eplb
