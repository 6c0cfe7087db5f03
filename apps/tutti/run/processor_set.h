#pragma once

// Which processors a worker may run on. Also beyond the 1024 of a fixed cpu_set_t.

#include <span>
#include <vector>

namespace tutti::command {

/// Processors of the machine that are switched on.
int present_processors();

/// Bit mask as sched_setaffinity takes it.
std::vector<unsigned long> processor_mask(std::span<const int> processors);

/// The processors of worker `rank` under --bind core. Throws Refusal when `workers` workers of
/// `threads` threads each do not fit into `allowed`.
std::vector<int> processors_of(int rank, int workers, int threads, std::span<const int> allowed);

}  // namespace tutti::command
