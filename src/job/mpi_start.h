#pragma once

// Initialises MPI on all workers of a job, whose first ones of each host make links over it.
//
// Threads: one. Failure: Unsupported on all workers where one of them has no MPI, MPI allows it no
// several threads, or its rank of MPI is not that of the job: the text names the worker.

#include "job/job_state.h"
#include "tutti/environment.h"

namespace tutti {

/// Collective over the job. Nobody waits inside MPI for a worker that cannot come there.
void start_mpi(JobState& job, const Environment& environment);

}  // namespace tutti
