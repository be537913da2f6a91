// SPDX-License-Identifier: Apache-2.0
#pragma once

// The library's front door: everything that an inference engine or the command includes.

#include "switchyard/api/allreduce.h"
#include "switchyard/api/bench.h"
#include "switchyard/api/bench_compare.h"
#include "switchyard/api/bench_routing.h"
#include "switchyard/api/checkpoint.h"
#include "switchyard/api/judge.h"
#include "switchyard/api/machine.h"
#include "switchyard/api/moe_layer.h"
#include "switchyard/api/processes.h"
#include "switchyard/api/rank_moe_layer.h"
#include "switchyard/api/ranks.h"
#include "switchyard/base/version.h"
#include "switchyard/core/preset.h"
#include "switchyard/eplb/balancer.h"
#include "switchyard/eplb/placement_file.h"
#include "switchyard/eplb/planner.h"
#include "switchyard/eplb/statistics.h"
