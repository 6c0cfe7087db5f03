#pragma once

// Loads MPI, by way of Tutti's library for it, and begins and ends its use in this process.
//
// Threads: functions may be called from any thread. Failure: each function's.

#include <string>

#include "mpi/mpi_functions.h"

namespace tutti {

/// The functions of the library tutti_mpi, which the first call loads: the file of
/// TUTTI_MPI_LIBRARY, or one that the program is linked with, that the system finds, or that lies
/// beside the program. Throws Unsupported, with what the system has said of each.
const MpiFunctions& mpi_functions();
/// "Open MPI v4.1.4".
std::string mpi_name();
/// What MPI says of a code.
std::string mpi_text(int code);

/// What MPI knows of this process.
struct MpiPlace {
  int rank = 0;
  int size = 1;
  bool allows_threads = false;  ///< several at once
};
/// Initialises MPI where the program has not; it is finalised when the process exits then. All
/// processes of MPI call it, and wait for one another. Throws IoError.
MpiPlace start_mpi();
/// The process ends without MPI_Finalize, which may wait for peers that are lost.
void leave_mpi_open() noexcept;

}  // namespace tutti
