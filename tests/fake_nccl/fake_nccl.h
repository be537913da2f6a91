// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A library under NCCL's name that a test links: its communicators do nothing, and refuse one
/// rank.
#pragma GCC visibility push(default)
extern "C" {
/// Which rank's ncclCommInitRank fails from now on; -1: none.
void fake_nccl_refuse(int rank);
/// Communicators that were made and not destroyed.
int fake_nccl_alive();
}
#pragma GCC visibility pop
