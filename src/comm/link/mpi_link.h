#pragma once

// The link over MPI: messages on a communicator of the link's own, between processes that an MPI's
// launcher has started. MPI is reached through mpi/mpi_library.h, so that a program which asks for
// no link over MPI loads none.
//
// All calls after the start are made by one thread of the link, which polls as long as anything is
// open. Links that are left when the process exits are closed then, before MPI is finalised.
// Threads: any. Failure: as of Link, with what MPI lacks: without its fault tolerance, MPI itself
// ends the whole job when one process dies. Memory of a send that is open when its peer is lost, or
// when the link ends, may still be read by MPI.

#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "comm/link/link.h"
#include "comm/link/link_request.h"

namespace tutti {

struct MpiOptions {
  /// Ranks of MPI, in the order of the peers, the own one among them.
  std::vector<int> ranks;
  int lanes = 1;
  int tag = 0;             ///< tells links apart that are made at the same time
  Deadline deadline = {};  ///< of the self-test; until then MPI waits as it likes
};

/// Collective over `ranks`. MPI has been initialised, and allows several threads. Throws
/// InvalidArgument where this rank is not among `ranks`, IoError, and what self_test() throws.
std::unique_ptr<Link> make_mpi_link(const MpiOptions& options);

/// The ranks in MPI that the peers tell one another, in their order. IoError where one is none.
std::vector<int> mpi_ranks_of(const std::vector<std::string>& texts);

/// Makes links over MPI between any workers of the job.
LinkEngine mpi_link_engine();

}  // namespace tutti
