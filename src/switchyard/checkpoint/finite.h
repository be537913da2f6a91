// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "switchyard/checkpoint/block_reader.h"
#include "switchyard/checkpoint/weight_source.h"

namespace switchyard::checkpoint {

/// Row and column of an element of a plane that is NaN or infinite, if there is one: the first
/// along the smaller stride.
std::optional<std::pair<std::int64_t, std::int64_t>> first_special(const Plane& plane);

/// Finds the first stored element of each projection that is NaN or infinite; it reads them all.
/// Scales and biases were judged when the tensors were found.
///
/// Shapes:  `which` follows the tensor's name where that holds several matrices: "expert 3".
/// Errors:  nothing is thrown; a projection without such an element adds nothing.
std::vector<Finding> find_bad_values(const ExpertSources& expert, std::string_view which);

/// The same of one matrix, noted in `reader`; false when it has such an element.
bool check_values(BlockReader& reader, const WeightSource& w);
/// The same of one FFN's matrices.
bool check_values(BlockReader& reader, const ExpertSources& expert);

/// Notes the first element of an F32, BF16 or F16 tensor that is NaN or infinite; false then.
bool check_floats(BlockReader& reader, const Tensor& t, const std::string& name);

}  // namespace switchyard::checkpoint
