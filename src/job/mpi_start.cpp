#include "job/mpi_start.h"

#include <string>

#include <fmt/format.h>

#include "base/helper_thread.h"
#include "job/gather.h"
#include "job/wire/rank_set.h"
#include "mpi/mpi_library.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Empty, or why MPI cannot be initialised here.
std::string missing(const Environment& environment) {
  try {
    mpi_functions();
  } catch (const Unsupported& error) {
    return error.what();
  }
  if (environment.started_by_mpi) return "";
  return fmt::format(
      "it was not started by mpirun, mpiexec or srun, which tell processes of MPI of one another; "
      "start all workers by that of {}, or take another link",
      mpi_name());
}

/// Empty, or why links cannot be made.
std::string unfit(const MpiPlace& place, const Identity& identity) {
  if (place.rank != identity.rank || place.size != identity.size) {
    return fmt::format(
        "{} has it as rank {} of {} and the job as rank {} of {}; start all workers by one mpirun, "
        "mpiexec or srun of this MPI",
        mpi_name(), place.rank, place.size, identity.rank, identity.size);
  }
  if (place.allows_threads) return "";
  return fmt::format(
      "{} does not allow several threads (MPI_THREAD_MULTIPLE); initialise MPI so, or leave that "
      "to Tutti",
      mpi_name());
}

void agree(JobState& job, const std::string& what, const std::string& problem) {
  const auto all = gather(job, what, RankSet::below(job.identity().size).ranks(), {problem, {}});
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].bytes.empty()) continue;
    throw Unsupported(
        fmt::format("TUTTI_LINK is mpi, but rank {} cannot take part: {}", rank, all[rank].bytes));
  }
}

}  // namespace

void start_mpi(JobState& job, const Environment& environment) {
  agree(job, "whether all workers have MPI", missing(environment));
  const auto place = [] {
    const StartsHelpers starts;
    return start_mpi();
  }();
  agree(job, "the ranks of MPI", unfit(place, job.identity()));
}

}  // namespace tutti
