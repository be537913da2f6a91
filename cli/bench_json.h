// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/output.h"
#include "switchyard/api/bench.h"

namespace switchyard::cli {

/// The keys of a benchmark's file that stand in front of its rows.
struct BenchRecord {
  std::string schema;   // bench_schema() of its kind
  std::string command;  // the command line
};

/// The record's keys and today's date, UTC.
Json record_json(const BenchRecord& record);
/// p50, p90, p99, min and samples of a call's times.
Json time_json(const TimeSummary& time);
/// The whole result of `bench layer`, without the header.
Json bench_layer_json(const BenchLayerResult& result);
/// The same for a terminal; `bars` adds what each row is held to.
std::string bench_layer_text(const BenchLayerResult& result, bool bars);

}  // namespace switchyard::cli
