#pragma once

// The link over MPI: messages of MPI_Isend and MPI_Irecv on a communicator of the link's own. A
// library apart (tutti_mpi), where MPI was found at build time: who does not link it loads no MPI.
//
// All calls after the start are made by one thread of the link, which polls as long as anything is
// open. MPI is initialised with MPI_THREAD_MULTIPLE where the program has not done so, and is
// finalised at the end of the process then, unless a peer was lost.
// Threads: any. Failure: as of Link, with what MPI lacks: without its fault tolerance, MPI itself
// ends the whole job when one process dies. Memory of a send that is open when its peer is lost, or
// when the link ends, may still be read by MPI.

#include <memory>
#include <vector>

#include "base/deadline.h"
#include "comm/link/link.h"

namespace tutti {

struct MpiOptions {
  /// Ranks of MPI_COMM_WORLD, in the order of the peers, the own one among them.
  std::vector<int> ranks;
  int lanes = 1;
  int tag = 0;             ///< tells links apart that are made at the same time
  Deadline deadline = {};  ///< of the self-test; until then MPI waits as it likes
};

/// Collective over `ranks`. Throws Unsupported where MPI does not allow several threads,
/// InvalidArgument where this rank is not among `ranks`, and what self_test() throws.
std::unique_ptr<Link> make_mpi_link(const MpiOptions& options);

}  // namespace tutti
